#include "services/hearthctl/prompt_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hearth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ParseTokenIdsTest, SeparatorsAndJsonAreAccepted) {
  EXPECT_THAT(ParseTokenIds("2,3,4").value(), ElementsAre(2, 3, 4));
  EXPECT_THAT(ParseTokenIds(" 2 3\n4\n").value(), ElementsAre(2, 3, 4));
  EXPECT_THAT(ParseTokenIds("[2, 3]").value(), ElementsAre(2, 3));
}

TEST(ParseTokenIdsTest, ErrorNamesInvalidId) {
  EXPECT_THAT(ParseTokenIds("2,x").status().message(),
              HasSubstr("token_ids[1] must be a token id; got \"x\""));
  EXPECT_THAT(ParseTokenIds("2,-1").status().message(), HasSubstr("\"-1\""));
  EXPECT_THAT(ParseTokenIds("4294967296").status().message(), HasSubstr("token_ids[0]"));
  EXPECT_THAT(ParseTokenIds("").status().message(), HasSubstr("empty"));
}

}  // namespace
}  // namespace hearth
