// SPDX-License-Identifier: MIT

//! WDDM's concepts over libskua.
