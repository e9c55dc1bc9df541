#include "indexer/net/long_answers.h"

#include <gtest/gtest.h>

namespace kvatlas {
namespace {

TEST(LongAnswersTest, AsManyAsThereArePlacesAndThenOnesThatAreFreeAgain) {
  LongAnswers answers(2);
  LongAnswers::Place first = answers.Take();
  LongAnswers::Place second = answers.Take();
  EXPECT_NE(first, nullptr);
  EXPECT_NE(second, nullptr);
  EXPECT_EQ(answers.Take(), nullptr);
  EXPECT_EQ(answers.Take(), nullptr);
  const LongAnswers::Place shared = first;
  first = nullptr;
  EXPECT_EQ(answers.Take(), nullptr);
  second = nullptr;
  EXPECT_NE(answers.Take(), nullptr);
}

}  // namespace
}  // namespace kvatlas
