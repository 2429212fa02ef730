// The measures of patterns, which bound their cost before the grammar library compiles them.
#include "worker/text/schema/schema_pattern.h"

#include <cstdint>
#include <string>
#include <utility>

#include "gtest/gtest.h"

namespace hearth {
namespace {

TEST(SchemaPatternTest, ShortestMatchCountsCharacters) {
  const std::pair<const char*, uint64_t> cases[] = {
      {"", 0},
      {"abc", 3},
      {"^abc$", 3},
      {"a|bc|def", 1},
      {"a|", 0},
      {"(ab|c)d", 2},
      {"(?:ab){3}", 6},
      {"(?<name>ab)(?P<other>c)", 3},
      {"(?i)ab(?s:.)", 3},
      {"a*b+c?", 1},
      {"é{3}日", 4},
      // Counts, and lazy repetitions.
      {"a{3}", 3},
      {"a{3,}", 3},
      {"a{3,5}", 3},
      {"a{,5}", 0},
      {"a{0,400}", 0},
      {"a{ 3 , 5 }", 3},
      {"a{3}?", 3},
      {"a{3,5}?b", 4},
      {"a{3}??", 0},
      {"a+?b", 2},
      {"a*?b", 1},
      {"a??b", 1},
      {"(a{3}){4}", 12},
      {"(a{3}|b){4}", 4},
      {"((((a{1000}){1000}){1000}){1000}){1000}", uint64_t{1} << 40},
      // Classes.
      {"[abc]d", 2},
      {"[^]]d", 2},
      {"[]a]d", 2},
      {"[\\]a]d", 2},
      {"[a[b-c]d]e", 2},
      {"[[:alpha:]]e", 2},
      {"[a-z&&[^b]]{2}", 2},
      {"[{(|]e", 2},
      // Escapes.
      {"\\d\\.\\\\", 3},
      {"\\p{L}{3}", 3},
      {"\\pL\\P{Greek}", 2},
      {"\\u0041\\x41\\U00000041", 3},
      {"\\u{41}\\x{1F600}", 2},
      {"\\bab\\B", 2},
      {"\\Aab\\z", 2},
      {"\\(a\\)", 3},
      {"\\{3}", 3}};
  for (const auto& [pattern, least] : cases) EXPECT_EQ(ShortestMatch(pattern), least) << pattern;
}

// A pattern must not be read past its end.
TEST(SchemaPatternTest, UnfinishedPatternIsMeasured) {
  const std::string whole = "(?<n>a{3,5}?[^]b[c]]\\p{L}\\x{41}|(?i-s:\\u0041\\x41))+?\xC3\xA9";
  for (size_t i = 0; i <= whole.size(); ++i) {
    const std::string part = whole.substr(0, i);
    EXPECT_LE(ShortestMatch(part), part.size()) << part;
    EXPECT_LE(GreatestRepetition(part), 41u) << part;
    EXPECT_LE(UnicodeClasses(part), 1u) << part;
  }
  EXPECT_EQ(ShortestMatch(")"), 0u);
  EXPECT_EQ(ShortestMatch("*"), 0u);
}

TEST(SchemaPatternTest, GreatestRepetitionSkipsSpaces) {
  const std::pair<const char*, uint64_t> cases[] = {{"", 0},
                                                    {"a{3}", 3},
                                                    {"a{3,}", 3},
                                                    {"a{3,70}b{5}", 70},
                                                    {"a{ 70 }", 70},
                                                    {"a{7\t0}", 70},
                                                    {"a{\xC2\xA0"
                                                     "70}",
                                                     70},
                                                    {"\\{1234 ab", 1234},
                                                    {"\\{a1234}", 0},
                                                    {"a{99999999999999999999}", uint64_t{1} << 32}};
  for (const auto& [pattern, most] : cases) EXPECT_EQ(GreatestRepetition(pattern), most) << pattern;
}

TEST(SchemaPatternTest, FaultsAreNamed) {
  for (const char* pattern : {"", "a", "\\\\", "a\\\\\\\\", "(?i)x", "(?:x)", "(?<x>a)", "(?P<x>a)",
                              "(?i:x)", "(?s)(x)", "\xFF"}) {
    EXPECT_EQ(PatternFault(pattern), "") << pattern;
  }
  for (const char* pattern : {"\\", "a\\", "\\\\\\"}) {
    EXPECT_EQ(PatternFault(pattern), "must not end with a lone backslash") << pattern;
  }
  for (const char* pattern : {"(?x)a", "(?ix)a", "(?x:a)", "(?i-x)a", "a(?s-ix:b)"}) {
    EXPECT_EQ(PatternFault(pattern), "must not have the flag x") << pattern;
  }
}

}  // namespace
}  // namespace hearth
