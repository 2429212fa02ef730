// Request bodies of 3 MiB with structures that are expensive to parse.
//
// Thread safety: pure functions.
#ifndef HEARTH_TESTS_SERVICES_OPENAI_HOSTILE_BODIES_H_
#define HEARTH_TESTS_SERVICES_OPENAI_HOSTILE_BODIES_H_

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tests/support/sanitized.h"

namespace hearth {

inline constexpr size_t kHostileBytes = size_t{3} << (kIsSanitized ? 17 : 20);

// Returns a text of about kHostileBytes: `begin`, copies of `item` separated by commas, and `end`.
inline std::string Repeated(absl::string_view begin, absl::string_view item,
                            absl::string_view end) {
  std::string body(begin);
  while (body.size() + item.size() + end.size() + 1 <= kHostileBytes) {
    absl::StrAppend(&body, body.size() > begin.size() ? "," : "", item);
  }
  return absl::StrCat(body, end);
}

// Returns a JSON object with `keys` fields whose names differ only in the last characters.
inline std::string ObjectOfKeys(size_t keys, absl::string_view prefix, absl::string_view value) {
  std::string made = "{";
  for (size_t i = 0; i < keys; ++i) {
    absl::StrAppend(&made, i > 0 ? "," : "", "\"", prefix, absl::Dec(i, absl::kZeroPad8),
                    "\":", value);
  }
  return made + "}";
}

inline std::string RepeatedText(absl::string_view part) {
  std::string text;
  while (text.size() + part.size() + 200 <= kHostileBytes) absl::StrAppend(&text, part);
  return text;
}

// Returns the bodies, each with a name for messages. Each is a completion or chat request.
inline std::vector<std::pair<std::string, std::string>> HostileBodies() {
  const std::string chat = R"({"messages":[)", role = R"({"role":"user","content":)";
  const std::string call = R"({"type":"function_call","call_id":"c","name":"f")";
  const std::string result = R"({"type":"function_call_output","call_id":"c","output":)";
  const std::string nest = std::string(60, '[') + std::string(60, ']');
  std::string biases = R"({"prompt":"a","logit_bias":{)", nested_objects;
  for (size_t i = 0; biases.size() + 20 < kHostileBytes; ++i) {
    absl::StrAppend(&biases, i > 0 ? "," : "", "\"", i, "\":1");
  }
  for (int i = 0; i < 60; ++i) nested_objects += "{\"a\":";
  nested_objects += "1" + std::string(60, '}');
  return {
      {"numbers", Repeated(R"({"x":[)", "1", "]}")},
      {"lists", Repeated(R"({"x":[)", "[]", "]}")},
      {"objects", Repeated(R"({"x":[)", "{}", "]}")},
      {"strings", Repeated(R"({"x":[)", "\"\"", "]}")},
      {"fields", Repeated(R"({"x":[)", "{\"\":0}", "]}")},
      {"nests", Repeated(R"({"x":[)", nest, "]}")},
      {"nested objects", Repeated(R"({"x":[)", nested_objects, "]}")},
      {"open lists", std::string(kHostileBytes, '[')},
      {"1,024 keys", Repeated(R"({"x":[)", ObjectOfKeys(1024, "", "0"), "]}")},
      {"1,024 long keys",
       Repeated(R"({"x":[)", ObjectOfKeys(1024, std::string(99, 'k'), "0"), "]}")},
      {"one object", absl::StrCat("{\"x\":", ObjectOfKeys(kHostileBytes / 15, "", "0"), "}")},
      {"digits", absl::StrCat("{\"n\":", RepeatedText("9"), "}")},
      {"fractions", Repeated(R"({"x":[)", "0.12345678901234567890123456789e-300", "]}")},
      {"fraction digits", absl::StrCat("{\"n\":0.", RepeatedText("1"), "}")},
      {"escapes", absl::StrCat("{\"prompt\":\"", RepeatedText("\\u00e9"), "\"}")},
      {"quotes", absl::StrCat("{\"prompt\":\"", RepeatedText("\\\""), "\"}")},
      {"unicode", absl::StrCat("{\"prompt\":\"", RepeatedText("\xF0\x9F\x98\x80"), "\"}")},
      {"one key", absl::StrCat("{\"", RepeatedText("k"), "\":1}")},
      {"token ids", Repeated(R"({"prompt":[)", "1", "]}")},
      {"id lists", Repeated(R"({"prompt":[)", "[1]", "]}")},
      {"texts", Repeated(R"({"prompt":[)", "\"a\"", "]}")},
      {"stops", Repeated(R"({"prompt":"a","stop":[)", "\"a\"", "]}")},
      {"one stop", absl::StrCat(R"({"prompt":"a","stop":")", RepeatedText("a"), "\"}")},
      {"stop ids", Repeated(R"({"prompt":"a","stop_token_ids":[)", "1", "]}")},
      {"biases", biases + "}}"},
      {"messages", Repeated(chat, role + "\"a\"}", "]}")},
      {"parts", Repeated(chat + role + "[", R"({"type":"text","text":"a"})", "]}]}")},
      {"wrong last part", Repeated(chat + role + "[", R"({"type":"text","text":"a"})", ",1]}]}")},
      {"wrong fields", Repeated(chat, ObjectOfKeys(1024, "", "0"), "]}")},
      {"items", Repeated(R"({"input":[)", role + "\"a\"}", "]}")},
      {"item parts",
       Repeated(R"({"input":[)" + role + "[", R"({"type":"input_text","text":"a"})", "]}]}")},
      {"reasoning items", Repeated(R"({"input":[)", R"({"type":"reasoning"})", "]}")},
      {"calls", Repeated(R"({"input":[)", call + "}", "]}")},
      {"results", Repeated(R"({"input":[)" + call + "},", result + "\"r\"}", "]}")},
      {"one result",
       absl::StrCat(R"({"input":[)", call, "},", result, "\"", RepeatedText("`"), "\"}]}")},
      {"arguments",
       absl::StrCat(R"({"input":[)", call, R"(,"arguments":")", RepeatedText("["), "\"}]}")},
      {"metadata", Repeated(R"({"input":"a","metadata":{"a":[)", "\"a\"", "]}}")},
      {"instructions", absl::StrCat(R"({"input":"a","instructions":")", RepeatedText("a"), "\"}")},
      {"included", Repeated(R"({"input":"a","include":[)", "\"a\"", "]}")},
      {"cache key",
       absl::StrCat(R"({"prompt":"a","prompt_cache_key":")", RepeatedText("k"), "\"}")},
      {"model", absl::StrCat(R"({"prompt":"a","model":")", RepeatedText("m"), "\"}")},
  };
}

}  // namespace hearth

#endif  // HEARTH_TESTS_SERVICES_OPENAI_HOSTILE_BODIES_H_
