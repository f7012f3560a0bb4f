"""The one border to Proton's C library.

Its cffi module carries no types, so everything that crosses here is `Any`. Whoever calls it vouches
for the pointers: one used after its object is gone ends the process, not the call.
"""

from typing import Any

from cproton_ffi import ffi as _ffi
from cproton_ffi import lib as _lib

ffi: Any = _ffi
lib: Any = _lib
