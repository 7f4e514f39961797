// SPDX-License-Identifier: MIT
#include <drivers/gpu/buddy.c>
