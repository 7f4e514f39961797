// SPDX-License-Identifier: MIT

//! Image filters on the Skua GPU.
