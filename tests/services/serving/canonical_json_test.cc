#include "services/serving/canonical_json.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "services/serving/json_reader.h"

namespace hearth {
namespace {

std::string Canonical(const std::string& text) {
  std::string out = "<";
  return AppendCanonicalJson(text, &out) ? out.substr(1) : "error " + out;
}

TEST(CanonicalJson, LayoutAndEscapesAreNormalised) {
  const std::pair<const char*, const char*> texts[] = {
      {R"({"city":"Paris"})", R"({"city": "Paris"})"},
      {"{ \"b\" : [ 1 ,\n2 ] , \"a\" : { } }", R"({"b": [1, 2], "a": {}})"},
      {R"([[], [[1], {"a": []}], "x"])", R"([[], [[1], {"a": []}], "x"])"},
      {R"("caf\u00e9 \ud83d\ude00 \/ \" \\ \n\t")",
       "\"caf\xC3\xA9 \xF0\x9F\x98\x80 / \\\" \\\\ \\n\\t\""},
      {R"([true, false, null, -1, 0])", "[true, false, null, -1, 0]"}};
  for (const auto& [text, want] : texts) EXPECT_EQ(Canonical(text), want) << text;
}

TEST(CanonicalJson, NumbersKeepTheirDigits) {
  EXPECT_EQ(Canonical("[12.50,1e2,18446744073709551615]"), "[12.50, 1e2, 18446744073709551615]");
  EXPECT_EQ(Canonical("[-0,0,-0.0,-5]"), "[-0, 0, -0.0, -5]");
}

TEST(CanonicalJson, InvalidJsonLeavesOutputUnchanged) {
  for (const char* text : {"", "{", "{\"city\": \"Par", "{} {}", "1e999", "\"\xFF\""}) {
    EXPECT_EQ(Canonical(text), "error <") << text;
  }
  EXPECT_EQ(Canonical(std::string(65, '[') + std::string(65, ']')), "error <");
  EXPECT_EQ(Canonical(std::string(64, '[') + std::string(64, ']')).size(), 128u);
}

TEST(CanonicalJson, JsonValueWritesSameForm) {
  const std::string text = R"({"b":[1,-0,2.5,{"c":"é\n"}],"a":null,"d":{},"e":[]})";
  const auto document = JsonDocument::Parse(text, "it");
  ASSERT_TRUE(document.ok());
  std::string written;
  document->root().Write(&written);
  EXPECT_EQ(written, Canonical(text));
  const std::string large = "[\"" + std::string(1000, 'x') + "\",1]";
  written.clear();
  JsonDocument::Parse(large, "it")->root().Write(&written);
  EXPECT_EQ(written, Canonical(large));
}

TEST(CanonicalJson, WriteStopsSoonAfterLimit) {
  std::string list = "[0";
  for (int i = 0; i < 100000; ++i) list += ",0";
  for (const std::string& text : {list + "]", "[\"" + std::string(100000, 'x') + "\"]"}) {
    const auto document = JsonDocument::Parse(text, "it");
    ASSERT_TRUE(document.ok());
    std::string written = "<";
    document->root().Write(&written, 1000);
    EXPECT_GE(written.size(), 1000u);
    EXPECT_LE(written.size(), 1010u);
  }
}

}  // namespace
}  // namespace hearth
