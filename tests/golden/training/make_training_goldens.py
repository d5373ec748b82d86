"""Makes the tiny Hugging Face folders beside this script and what PyTorch says about training them.

Usage: python make_training_goldens.py [folder, by default the script's own]

NAME/ is a folder of bfloat16 weights. NAME.npz has a batch, its loss, the gradient of every parameter and the parameters after
some AdamW steps; NAME.lora.npz the same for PEFT's adapters on those weights or on a GGUF file of ../gguf. All is computed in
float64 and kept in float32, under native names. README.md has the layouts.
"""

import json
import math
import pathlib
import sys

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    get_cosine_schedule_with_warmup,
    get_linear_schedule_with_warmup,
)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import common

SCRIPT = "tests/golden/training/make_training_goldens.py"
SEQUENCES, LENGTH = 3, 12
VOCABULARY = 37
STEPS = 3
LEARNING_RATE, BETAS, EPSILON, WEIGHT_DECAY, MAXIMUM_NORM, TOTAL_STEPS = 0.01, (0.8, 0.9), 1e-4, 0.2, 0.5, 5
ROPE = {"rope_type": "default", "rope_theta": 100.0}
LLAMA = dict(
    vocab_size=VOCABULARY,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    max_position_embeddings=16,
    rms_norm_eps=1e-5,
    rope_parameters=ROPE,
    bos_token_id=1,
    eos_token_id=2,
)
GPT2 = dict(
    vocab_size=VOCABULARY,
    n_positions=16,
    n_embd=16,
    n_layer=2,
    n_head=2,
    n_inner=24,
    bos_token_id=0,
    eos_token_id=0,
)
DROPOUT = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
ADAPTED = {
    "q_proj": "q",
    "k_proj": "k",
    "v_proj": "v",
    "o_proj": "o",
    "gate_proj": "gate",
    "up_proj": "up",
    "down_proj": "down",
    "lm_head": "head",
}


def models() -> dict[str, PreTrainedModel]:
    return {
        "gpt2-tanh-tied": GPT2LMHeadModel(GPT2Config(**GPT2, **DROPOUT)),
        "gpt2-erf-untied": GPT2LMHeadModel(
            GPT2Config(**GPT2, **DROPOUT, activation_function="gelu", tie_word_embeddings=False)
        ),
        "llama-gqa-untied": LlamaForCausalLM(LlamaConfig(**LLAMA)),
        "qwen2-biases-tied": Qwen2ForCausalLM(Qwen2Config(**LLAMA, tie_word_embeddings=True)),
        "qwen3-window": Qwen3ForCausalLM(
            Qwen3Config(
                **LLAMA,
                head_dim=10,
                use_sliding_window=True,
                sliding_window=5,
                max_window_layers=1,
                layer_types=["full_attention", "sliding_attention"],
                tie_word_embeddings=False,
            )
        ),
    }


# --- native names -----------------------------------------------------------------------------------------------------

GPT2_NAMES = {
    "transformer.wte.weight": "embedding.token",
    "transformer.wpe.weight": "embedding.position",
    "transformer.ln_f.weight": "final_norm.weight",
    "transformer.ln_f.bias": "final_norm.bias",
    "lm_head.weight": "head.weight",
    "ln_1": "attention_norm",
    "ln_2": "mlp_norm",
    "attn.c_proj": "o",
    "mlp.c_fc": "up",
    "mlp.c_proj": "down",
}
LLAMA_NAMES = {
    "model.embed_tokens.weight": "embedding.token",
    "model.norm.weight": "final_norm.weight",
    "lm_head.weight": "head.weight",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "mlp_norm",
    "self_attn.q_norm": "q_norm",
    "self_attn.k_norm": "k_norm",
}
LLAMA_NAMES |= {f"{'mlp' if n in ('gate', 'up', 'down') else 'self_attn'}.{p}": n for p, n in ADAPTED.items()}


def native(name: str, value: torch.Tensor) -> dict[str, torch.Tensor]:
    """A parameter (or something of its shape) under its native name or, for GPT-2's fused c_attn, names."""
    gpt2 = name.startswith("transformer.")
    names = GPT2_NAMES if gpt2 else LLAMA_NAMES
    if name in names:
        return {names[name]: value}
    _, _, layer, rest = name.split(".", 3)
    at, kind = rest.rsplit(".", 1)
    if gpt2 and value.dim() == 2:
        value = value.T  # stored [in, out]
    if at == "attn.c_attn":
        parts = value.chunk(3)
        return {f"layers.{layer}.{n}.{kind}": part for n, part in zip("qkv", parts, strict=True)}
    return {f"layers.{layer}.{names[at]}.{kind}": value}


def arrays(values: dict[str, torch.Tensor], prefix: str) -> dict[str, np.ndarray]:
    return {
        prefix + name: part.detach().float().contiguous().numpy()
        for key, value in values.items()
        for name, part in native(key, value).items()
    }


def native_adapter(name: str, value: torch.Tensor) -> dict[str, torch.Tensor]:
    parts = name.removeprefix("base_model.model.").split(".")
    module, kind = next(p for p in parts if p in ADAPTED), next(p for p in parts if p.startswith("lora_"))
    at = "head" if module == "lm_head" else f"layers.{parts[parts.index('layers') + 1]}.{ADAPTED[module]}"
    return {f"{at}.{kind.lower()}": value}


def adapter_arrays(values: dict[str, torch.Tensor], prefix: str) -> dict[str, np.ndarray]:
    return {
        prefix + name: part.detach().float().numpy()
        for key, value in values.items()
        for name, part in native_adapter(key, value).items()
    }


# --- training ---------------------------------------------------------------------------------------------------------


def batch(vocabulary: int, seed: int) -> dict[str, np.ndarray]:
    """Tokens, and the targets of an ordinary batch and of one where prompts and padding do not count (-1)."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, vocabulary, (SEQUENCES, LENGTH + 1))
    masked = ids[:, 1:].copy()
    masked[0, :5] = masked[1, 9:] = masked[2, ::2] = -1
    return {
        "tokens": ids[:, :-1].astype(np.int32),
        "targets": ids[:, 1:].astype(np.int32),
        "masked": masked.astype(np.int32),
    }


def loss_of(model: torch.nn.Module, tokens: np.ndarray, targets: np.ndarray) -> torch.Tensor:
    logits = model(input_ids=torch.from_numpy(tokens).long(), use_cache=False).logits
    wanted = torch.from_numpy(targets).long().flatten()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted, ignore_index=-1)


def gradients(
    model: torch.nn.Module, tokens: np.ndarray, targets: np.ndarray
) -> tuple[float, dict[str, torch.Tensor]]:
    model.zero_grad()
    loss = loss_of(model, tokens, targets)
    loss.backward()
    return loss.item(), {n: p.grad.clone() for n, p in model.named_parameters() if p.requires_grad}


def train(model: torch.nn.Module, data: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """STEPS of AdamW with clipping, groups and a cosine schedule; the metrics of each."""
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    free = [p for n, p in trained.items() if p.dim() == 1 or "wte" in n or "wpe" in n or "embed" in n]
    decayed = [p for p in trained.values() if not any(p is q for q in free)]
    groups = [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": free, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS, eps=EPSILON)
    schedule = get_cosine_schedule_with_warmup(optimizer, 0, TOTAL_STEPS)
    losses, norms, rates = [], [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, data["tokens"], data["masked" if step == 1 else "targets"])
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(trained.values(), MAXIMUM_NORM)
        losses.append(loss.item())
        norms.append(norm.item())
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    assert min(norms) > MAXIMUM_NORM, norms  # each step is clipped
    return {"losses": np.array(losses), "norms": np.array(norms), "rates": np.array(rates)}


def options() -> str:
    return json.dumps(
        {
            "learning_rate": LEARNING_RATE,
            "beta1": BETAS[0],
            "beta2": BETAS[1],
            "epsilon": EPSILON,
            "weight_decay": WEIGHT_DECAY,
            "maximum_gradient_norm": MAXIMUM_NORM,
            "total_steps": TOTAL_STEPS,
        }
    )


def trainable(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {n: p for n, p in model.named_parameters() if p.requires_grad}


def save_training(
    path: pathlib.Path, model: torch.nn.Module, vocabulary: int, to_arrays, seed: int, **more
) -> None:
    model.double()
    model.eval()  # no dropout; gradients all the same
    data = batch(vocabulary, seed)
    result: dict[str, np.ndarray] = {**data, **more, "options": options(), "made_by": common.made_by(SCRIPT)}
    for targets in ("targets", "masked"):
        loss, found = gradients(model, data["tokens"], data[targets])
        result[f"loss.{targets}"] = np.float64(loss)
        if targets == "targets":
            result |= to_arrays(found, "gradient.")
            assert all(g.abs().max() > 1e-5 for g in found.values())  # nothing is untested
    result |= train(model, data)
    result |= to_arrays(trainable(model), "after.")
    np.savez_compressed(path, **result)


def bfloat16_folder(folder: pathlib.Path, model: PreTrainedModel) -> PreTrainedModel:
    """Writes the folder and gives the model back as it is read from there."""
    model.bfloat16().save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    return type(model).from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")


def adapted(model: PreTrainedModel, seed: int, rank: int, alpha: int, targets: list[str]) -> torch.nn.Module:
    peft = get_peft_model(
        model, LoraConfig(r=rank, lora_alpha=alpha, target_modules=targets, lora_dropout=0.0)
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in peft.named_parameters():
            if "lora_" in name:  # B too, so that A has a gradient
                p.copy_(
                    torch.randn(p.shape, generator=generator)
                    * (0.3 if "lora_B" in name else 1 / math.sqrt(rank))
                )
    return peft


def save_adapters(
    path: pathlib.Path, model: PreTrainedModel, seed: int, rank: int, alpha: int, targets: list[str]
) -> None:
    peft = adapted(model, seed, rank, alpha, targets)
    before = adapter_arrays(trainable(peft), "before.")
    save_training(path, peft, model.config.vocab_size, adapter_arrays, seed, rank=rank, alpha=alpha, **before)


def save_rates(path: pathlib.Path) -> None:
    result = {}
    for name, schedule in (
        ("cosine", get_cosine_schedule_with_warmup),
        ("linear", get_linear_schedule_with_warmup),
    ):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
        scheduler = schedule(optimizer, 0, 20)
        rates = []
        for _ in range(21):
            rates.append(scheduler.get_last_lr()[0])
            optimizer.step()
            scheduler.step()
        result[name] = np.array(rates)
    np.savez_compressed(path, made_by=common.made_by(SCRIPT), **result)


def main() -> None:
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent
    torch.manual_seed(0)
    for seed, (name, model) in enumerate(models().items(), start=1):
        common.randomise(model, seed)
        read = bfloat16_folder(out / name, model)
        save_training(out / f"{name}.npz", read, VOCABULARY, arrays, seed)
        print(name)
    llama = LlamaForCausalLM.from_pretrained(
        out / "llama-gqa-untied", dtype=torch.float64, attn_implementation="eager"
    )
    save_adapters(out / "llama-gqa-untied.lora.npz", llama, 20, 3, 6, list(ADAPTED))
    gguf = pathlib.Path(__file__).resolve().parents[1] / "gguf"
    quantised = AutoModelForCausalLM.from_pretrained(
        gguf, gguf_file="llama-q4_1-tied.gguf", dtype=torch.float64, attn_implementation="eager"
    )
    save_adapters(out / "llama-q4_1-tied.lora.npz", quantised, 30, 2, 4, ["q_proj", "down_proj"])
    save_rates(out / "rates.npz")


if __name__ == "__main__":
    main()
