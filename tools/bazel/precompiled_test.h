// What most tests include beside precompiled.h, compiled once with it (precompiled.bzl).

#include <gmock/gmock.h>
#include <gtest/gtest.h>
