#include "services/logging.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace hearth {
namespace {

TEST(Logging, WritesFieldsAsKeyValue) {
  EXPECT_EQ(FormatText("ready", {{"address", "127.0.0.1:7080"}, {"took_ms", 41}}),
            "ready address=127.0.0.1:7080 took_ms=41");
}

TEST(Logging, QuotesWhatWouldBeMisread) {
  EXPECT_EQ(
      FormatText("x", {{"a", ""}, {"b", "two words"}, {"c", "q\"uote"}, {"d", "line\nbreak"}}),
      "x a=\"\" b=\"two words\" c=\"q\\\"uote\" d=\"line\\nbreak\"");
}

TEST(Logging, WritesOneJsonObjectWithNumbersAsNumbers) {
  const std::string line = FormatJson("2026-01-31T12:00:00.123Z", "info", "ready",
                                      {{"bytes", 12}, {"path", "a\"b\xff"}});
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto parsed = nlohmann::json::parse(line);
  EXPECT_EQ(parsed["level"], "info");
  EXPECT_EQ(parsed["bytes"], 12);
  EXPECT_EQ(parsed["path"], "a\"b\xEF\xBF\xBD");
}

}  // namespace
}  // namespace hearth
