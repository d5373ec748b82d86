"""Runs in llama's environment: llama.cpp's quantiser. usage: quantise.py IN.gguf OUT.gguf Q4_0|Q8_0|Q4_K|Q5_K|Q6_K"""

import sys

import llama_cpp.llama_cpp as api

source, out, kind = sys.argv[1:]
options = api.llama_model_quantize_default_params()
options.allow_requantize = True
names = {"Q4_0": "MOSTLY_Q4_0", "Q8_0": "MOSTLY_Q8_0", "Q6_K": "MOSTLY_Q6_K"}
names |= {"Q4_K": "MOSTLY_Q4_K_M", "Q5_K": "MOSTLY_Q5_K_M"}
options.ftype = getattr(api, f"LLAMA_FTYPE_{names[kind]}")
sys.exit(api.llama_model_quantize(source.encode(), out.encode(), options))
