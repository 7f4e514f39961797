// SPDX-License-Identifier: MIT

//! Counts what a submission and a wait cost.
