// SPDX-License-Identifier: MIT

//! The interpreter and the device model, which were written apart, must agree.

mod machine;
mod programs;
