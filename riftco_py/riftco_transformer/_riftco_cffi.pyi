# Generated at build time from the public C headers by build_cffi.py.
from typing import Any

ffi: Any
