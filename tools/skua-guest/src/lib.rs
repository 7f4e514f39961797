// SPDX-License-Identifier: MIT

//! The guest's init and test runner.
