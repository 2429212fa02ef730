// Fuzz target: JSON bodies of requests of untrusted callers, for each API.
#include <limits>

#include "absl/strings/match.h"
#include "services/openai/messages_request.h"
#include "tests/fuzz/request_body.h"

namespace hearth {
namespace {

// Returns whether `value` equals the value that another JSON parser (nlohmann) reads from the same
// text.
bool IsSame(JsonValue value, const OtherJson& other) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (other.is_null()) return value.is_null();
  if (other.is_boolean()) return value.IsBool(other.get<bool>());
  if (other.is_string()) return value.Is(other.get_ref<const std::string&>());
  if (other.is_number()) {
    const absl::StatusOr<double> number = value.Number(-kInfinity, kInfinity);
    return number.ok() && *number == other.get<double>();
  }
  if (value.size() != other.size() || value.is_object() != other.is_object()) return false;
  auto one = other.begin();
  for (const JsonValue element : value.elements()) {
    if (!IsSame(element, *one++)) return false;
  }
  for (const JsonValue field : value.fields()) {
    if (field.name() != one.key() || !IsSame(field, *one++)) return false;
  }
  return true;
}

// Parses a text with Hearth's JSON parser and with nlohmann's. The results must be equal, unless
// the text exceeds a limit of Hearth's parser.
void CompareParsers(absl::string_view text) {
  uint64_t held = 0;
  JsonLimits limits;
  limits.depth = 16;
  limits.keys = 32;
  limits.hold = [&held](uint64_t bytes) {
    held += bytes;
    return true;
  };
  const absl::StatusOr<JsonDocument> document = JsonDocument::Parse(text, "the text", limits);
  const uint64_t most = 10 * text.size() + 4096;
  Require(held <= most, "more memory than the text can need");
  const OtherJson other = OtherJson::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!document.ok()) {
    const std::string message = CheckedMessage(document.status());
    Require(other.is_discarded() || absl::StrContains(message, "deep") ||
                absl::StrContains(message, "keys") || absl::StrContains(message, "each key once"),
            "JSON that was refused");
    return;
  }
  Require(document->bytes() <= most, "a document larger than its text can need");
  Require(!other.is_discarded() && IsSame(document->root(), other), "JSON that was read otherwise");
}

// Parses any body of `bytes` bytes with the parsers of the Messages API, of /tokenize, of
// /detokenize and of a time to live.
void TryOthers(JsonValue body, size_t bytes) {
  static const TemplateTools own{"FILE", /*reads_tools=*/true, "<tool_call>\n", "arguments"};
  ParseTerms terms;
  for (const auto parse : {&ParseMessages, &ParseCountTokens}) {
    const absl::StatusOr<OpenAiRequest> request = parse(body, terms);
    terms.own_template = &own;
    if (!request.ok()) {
      CheckedMessage(request.status());
    } else {
      Require(request->prompts.size() == 1, "one prompt");
      Require(request->bytes() <= 64 * bytes + 8192, "a request much larger than its body");
    }
  }
  const absl::StatusOr<OpenAiRequest> tokenize = ParseTokenize(body, kContextTokens);
  if (!tokenize.ok()) CheckedMessage(tokenize.status());
  UnknownFields unknown;
  const absl::Status detokenize = CheckOpenAiFields(body, kInDetokenize, &unknown);
  if (!detokenize.ok()) CheckedMessage(detokenize);
  for (const char c : unknown.Text()) Require(c >= ' ' && c <= '~', "a header with another byte");
  for (const JsonValue field : body.fields()) {
    for (const absl::Status& status :
         {field.Ids(kContextTokens).status(), ParseCacheTtl(field).status()}) {
      if (!status.ok()) CheckedMessage(status);
    }
  }
}

void TryBody(Api api, absl::string_view body) {
  CompareParsers(body);
  const absl::Status status = ReadBody(api, body, [](uint64_t) { return true; });
  if (!status.ok()) CheckedMessage(status);
  if (const absl::StatusOr<JsonDocument> parsed = ParseBody(body); parsed.ok()) {
    TryOthers(parsed->root(), body.size());
  }
}

}  // namespace
}  // namespace hearth

// The first byte selects the API, but each body is also read as a request of the Messages API.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string body(reinterpret_cast<const char*>(data) + 1, size - 1);
  hearth::TryBody(static_cast<hearth::Api>(data[0] % 3), body);
  return 0;
}
