// What most tests include, compiled once (precompiled.bzl).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/bazel/precompiled.h"
