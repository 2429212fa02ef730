#include "proto/utf8.h"

#include <cstdint>
#include <random>
#include <string>

#include "gtest/gtest.h"

namespace hearth {
namespace {

TEST(Utf8, FirstInvalidByteIsFound) {
  EXPECT_EQ(FindInvalidUtf8(""), std::nullopt);
  EXPECT_EQ(FindInvalidUtf8("a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x99\x82"), std::nullopt);
  EXPECT_EQ(FindInvalidUtf8(std::string("a\0b", 3)), std::nullopt);
  EXPECT_EQ(FindInvalidUtf8("ab\xFF"), 2U);
  EXPECT_EQ(FindInvalidUtf8("ab\xC3"), 2U) << "cut off";
  EXPECT_EQ(FindInvalidUtf8("\xC0\x80"), 0U) << "overlong";
  EXPECT_EQ(FindInvalidUtf8("\xE0\x80\x80"), 0U) << "overlong";
  EXPECT_EQ(FindInvalidUtf8("x\xED\xA0\x80"), 1U) << "a surrogate";
  EXPECT_EQ(FindInvalidUtf8("\xF4\x90\x80\x80"), 0U) << "above U+10FFFF";
  EXPECT_EQ(FindInvalidUtf8("\x80"), 0U) << "a continuation byte alone";
}

TEST(Utf8, StripsSameWhitespaceAsPython) {
  EXPECT_EQ(StripWhitespace(" \t\r\n\v\f\x1C\x1F"
                            "a b\xC2\x85\xC2\xA0\xE1\x9A\x80"),
            "a b");
  EXPECT_EQ(StripWhitespace("\xE2\x80\x80\xE2\x80\x8A\xE2\x80\xA8"
                            "a\xE3\x80\x80\xE2\x81\x9F"),
            "a");
  EXPECT_EQ(StripWhitespace(" \n "), "");
  EXPECT_EQ(StripWhitespace("\xE2\x80\x8B"
                            "a\xEF\xBB\xBF"),
            "\xE2\x80\x8B"
            "a\xEF\xBB\xBF")
      << "zero width space and byte order mark are no white space in Python";
  EXPECT_EQ(StripWhitespace("\x1B"
                            "a\x08"),
            "\x1B"
            "a\x08");
  EXPECT_EQ(StripLeadingWhitespace(" \xC2\xA0"
                                   "a \n"),
            "a \n");
}

TEST(Utf8, RepairReplacesStrayBytes) {
  Utf8Repairer repairer;
  std::string out;
  repairer.Append("a\xE2\x82", &out);
  EXPECT_EQ(out, "a") << "an incomplete character is held back";
  repairer.Append("\xAC", &out);
  EXPECT_EQ(out, "a\xE2\x82\xAC");
  repairer.Append(
      "\xF0\x9F"
      "b",
      &out);
  EXPECT_EQ(out,
            "a\xE2\x82\xAC\xEF\xBF\xBD\xEF\xBF\xBD"
            "b");
  repairer.Append("\xC3", &out);
  repairer.Finish(&out);
  EXPECT_EQ(out,
            "a\xE2\x82\xAC\xEF\xBF\xBD\xEF\xBF\xBD"
            "b\xEF\xBF\xBD");
}

TEST(Utf8, RepairIgnoresChunkBoundaries) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes, whole, parts;
    for (int i = random() % 24; i > 0; --i) {
      static constexpr uint8_t kBytes[] = {'a',  0x80, 0xBF, 0xC3, 0xE2,
                                           0x82, 0xED, 0xF0, 0x9F, 0xFF};
      bytes.push_back(static_cast<char>(kBytes[random() % sizeof(kBytes)]));
    }
    Utf8Repairer at_once, one_by_one;
    at_once.Append(bytes, &whole);
    at_once.Finish(&whole);
    for (const char byte : bytes) {
      one_by_one.Append(std::string(1, byte), &parts);
      ASSERT_EQ(FindInvalidUtf8(parts), std::nullopt);
    }
    one_by_one.Finish(&parts);
    ASSERT_EQ(parts, whole);
  }
}

}  // namespace
}  // namespace hearth
