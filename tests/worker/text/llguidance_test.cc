// Checks that the library has the version and the layouts of worker/text/llguidance.h.
#include "worker/text/llguidance.h"

#include <cstring>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hearth {
namespace {

using ::testing::Each;
using ::testing::StartsWith;

TEST(LlguidanceTest, VersionIsAsDeclared) {
  EXPECT_THAT(std::string(llg_get_version()), StartsWith(std::string(kLlgVersion) + " "));
}

TEST(LlguidanceTest, DefaultLimitsHaveDeclaredLayout) {
  struct {
    LlgConstraintInit init;
    unsigned char after[64];
  } memory;
  std::memset(&memory, 0xAB, sizeof(memory));
  const auto* const tokenizer = reinterpret_cast<const LlgTokenizer*>(&memory);
  llg_constraint_init_set_defaults(&memory.init, tokenizer);
  EXPECT_EQ(memory.init.tokenizer, tokenizer);
  EXPECT_EQ(memory.init.log_buffer_level, 0u);
  EXPECT_EQ(memory.init.log_stderr_level, 1u);
  EXPECT_FALSE(memory.init.ff_tokens_ok);
  EXPECT_FALSE(memory.init.backtrack_ok);
  const LlgParserLimits& limits = memory.init.limits;
  EXPECT_EQ(limits.max_items_in_row, 2000u);
  EXPECT_EQ(limits.initial_lexer_fuel, 1'000'000u);
  EXPECT_EQ(limits.step_lexer_fuel, 200'000u);
  EXPECT_EQ(limits.step_max_items, 50'000u);
  EXPECT_EQ(limits.max_lexer_states, 250'000u);
  EXPECT_EQ(limits.max_grammar_size, 500'000u);
  EXPECT_TRUE(limits.precompute_large_lexemes);
  EXPECT_TRUE(limits.verbose_errors);
  EXPECT_THAT(memory.after, Each(0xAB)) << "the library writes beyond the declared layout";
}

}  // namespace
}  // namespace hearth
