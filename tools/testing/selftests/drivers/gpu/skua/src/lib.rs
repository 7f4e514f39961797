// SPDX-License-Identifier: MIT

//! kselftests of the Skua driver.
