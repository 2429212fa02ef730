#include "worker/text/text_stream.h"

#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/utf8.h"
#include "tests/worker/text/tiny_tokenizer.h"

namespace hearth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Returns the texts that Push returned for each token, and the text of Finish.
std::vector<std::string> Deltas(const std::vector<int32_t>& ids, std::vector<std::string> stops) {
  TextStream stream(&TinyTokenizer(), std::move(stops));
  std::vector<std::string> deltas;
  for (const int32_t id : ids) deltas.push_back(stream.Push(id));
  deltas.push_back(stream.Finish());
  return deltas;
}

std::string Joined(const std::vector<std::string>& deltas) {
  std::string text;
  for (const std::string& delta : deltas) text += delta;
  return text;
}

std::vector<int32_t> Pieces(const std::vector<std::string>& pieces) {
  std::vector<int32_t> ids;
  for (const std::string& piece : pieces) ids.push_back(TinyTokenizer().FindPiece(piece).value());
  return ids;
}

TEST(TextStream, NeverSplitsACharacter) {
  EXPECT_THAT(Deltas(Pieces({"and", "<0xF0>", "<0x9F>", "<0x99>", "<0x82>", "▁and"}), {}),
              ElementsAre("and", "", "", "", "\xF0\x9F\x99\x82", " and", ""));
  EXPECT_THAT(Deltas(Pieces({"<0xF0>", "<0x9F>", "e", "<0xC3>"}), {}),
              ElementsAre("", "",
                          "\xEF\xBF\xBD\xEF\xBF\xBD"
                          "e",
                          "", "\xEF\xBF\xBD"));
}

TEST(TextStream, PossibleStopStringIsHeldBack) {
  EXPECT_THAT(Deltas(Pieces({"t", "h", "e", "s", "t", "o", "p"}), {"stop"}),
              ElementsAre("t", "h", "e", "", "", "", "", ""));
  EXPECT_THAT(Deltas(Pieces({"s", "t", "o", "s", "t", "i"}), {"stop"}),
              ElementsAre("", "", "", "sto", "", "sti", ""));
  EXPECT_THAT(Deltas(Pieces({"a", "s", "t"}), {"stop"}), ElementsAre("a", "", "", "st"));
}

// Checks EndsWithStopString at every prefix of a text, as a beam search uses it.
TEST(TextStream, EndsWithStopStringMatchesStream) {
  std::mt19937_64 random(5);
  int stopped = 0;
  for (int run = 0; run < 200; ++run) {
    const std::vector<int32_t> ids = TinyTokenizer().Encode(RandomText(&random, 60));
    std::vector<std::string> stops = {RandomText(&random, 1 + run % 2), "\xEF\xBF\xBD"};
    if (!ValidateStopStrings(stops).ok()) continue;
    TextStream stream(&TinyTokenizer(), stops);
    for (size_t end = 1; end <= ids.size() && !stream.stopped(); ++end) {
      stream.Push(ids[end - 1]);
      EXPECT_EQ(EndsWithStopString(TinyTokenizer(), stops, absl::MakeSpan(ids).first(end)),
                stream.stopped())
          << run << ", " << end << " tokens";
    }
    stopped += stream.stopped() ? 1 : 0;
  }
  EXPECT_GT(stopped, 50);
  EXPECT_FALSE(EndsWithStopString(TinyTokenizer(), {}, Pieces({"and"})));
}

TEST(TextStream, TextEndsBeforeStopString) {
  TextStream stream(&TinyTokenizer(), {"d\n"});
  EXPECT_EQ(stream.Push(Pieces({"and"})[0]), "an");
  EXPECT_FALSE(stream.stopped());
  EXPECT_EQ(stream.stop_string(), "");
  EXPECT_EQ(stream.Push(Pieces({"\n\n"})[0]), "");
  EXPECT_TRUE(stream.stopped());
  EXPECT_EQ(stream.stop_string(), "d\n");
  EXPECT_EQ(stream.Push(Pieces({"and"})[0]), "");
  EXPECT_EQ(stream.Finish(), "");
}

TEST(TextStream, FirstCompleteStopStringWins) {
  EXPECT_EQ(Joined(Deltas(Pieces({"a", "b", "c", "d"}), {"abcd", "bc"})), "a");
  EXPECT_EQ(Joined(Deltas(Pieces({"a", "b", "c", "d"}), {"bcd", "abcd"})), "")
      << "of stop strings that end together, the longest counts";
  TextStream stream(&TinyTokenizer(), {"bcd", "abcd"});
  for (const int32_t id : Pieces({"a", "b", "c", "d"})) stream.Push(id);
  EXPECT_EQ(stream.stop_string(), "abcd");
}

TEST(TextStream, OverlappingStopStringIsFound) {
  EXPECT_EQ(Joined(Deltas(Pieces({"a", "a", "a", "b", "t"}), {"aab"})), "a");
  EXPECT_EQ(Joined(Deltas(Pieces({"a", "b", "a", "b", "a", "c"}), {"abac"})), "ab");
}

TEST(TextStream, DeltasJoinToDecodedText) {
  std::mt19937_64 random(5);
  int stopped_runs = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<int32_t> ids;
    for (int i = random() % 40; i > 0; --i) {
      // Half of the tokens are byte tokens, the others arbitrary.
      ids.push_back(random() % 2 == 0 ? 19 + random() % 256 : random() % TinyTokenizer().size());
    }
    const std::string decoded = TinyTokenizer().Decode(ids, true);
    std::vector<std::string> stops;
    if (round % 2 == 0 && decoded.size() > 4) {
      size_t from = random() % (decoded.size() - 1), to = from + 1 + random() % 3;
      while (from > 0 && !IsUtf8Boundary(decoded, from)) --from;
      while (to < decoded.size() && !IsUtf8Boundary(decoded, to)) ++to;
      stops = {decoded.substr(from, to - from), "never seen"};
    }
    const auto deltas = Deltas(ids, stops);
    for (const std::string& delta : deltas) ASSERT_EQ(FindInvalidUtf8(delta), std::nullopt);
    const size_t stop = stops.empty() ? std::string::npos : decoded.find(stops[0]);
    ASSERT_EQ(Joined(deltas), decoded.substr(0, stop));
    stopped_runs += stop != std::string::npos;
  }
  EXPECT_GT(stopped_runs, 500);
}

TEST(TextStream, InvalidStopStringsAreRefused) {
  EXPECT_TRUE(ValidateStopStrings({}).ok());
  EXPECT_TRUE(ValidateStopStrings({std::string(kMaxStopStringBytes, 'a')}).ok());
  EXPECT_THAT(std::string(ValidateStopStrings({"a", ""}).message()), HasSubstr("stop[1]: has 0"));
  EXPECT_THAT(std::string(ValidateStopStrings({std::string(257, 'a')}).message()),
              HasSubstr("must be in [1, 256]"));
  EXPECT_THAT(std::string(ValidateStopStrings(std::vector<std::string>(17, "a")).message()),
              HasSubstr("the limit is 16"));
  EXPECT_THAT(std::string(ValidateStopStrings({"a\xFF"}).message()), HasSubstr("stop[0]"));
}

}  // namespace
}  // namespace hearth
