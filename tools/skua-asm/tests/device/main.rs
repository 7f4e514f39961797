// SPDX-License-Identifier: MIT

//! The reference and the device model, which were written apart, must agree.

mod machine;
mod programs;
