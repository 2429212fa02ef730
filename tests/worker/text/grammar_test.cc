// Grammars over the tiny tokenizer: allowed tokens, forced tokens, and the end of an answer.
#include "worker/text/grammar.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/text/tiny_tokenizer.h"

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int32_t kEos = 1;

GrammarEngine& Grammars() {
  static auto* const grammars = new GrammarEngine(&TinyTokenizer(), {kEos}, TinyTokenizer().size());
  return *grammars;
}

std::unique_ptr<GrammarState> StateOf(const std::string& schema,
                                      std::vector<std::string> triggers = {}) {
  const auto grammar = Grammars().Compile({schema, std::move(triggers), false});
  EXPECT_TRUE(grammar.ok()) << grammar.status();
  return grammar.ok() ? (*grammar)->NewState() : nullptr;
}

bool Allows(GrammarState* state, int32_t token) {
  const auto mask = state->Allow();
  EXPECT_TRUE(mask.ok()) << mask.status();
  if (mask->empty()) return true;
  return (((*mask)[static_cast<size_t>(token) / 32] >> (token % 32)) & 1) != 0;
}

// Whether the state accepts the tokens of `text`. Also checks the masks.
bool Accepts(GrammarState* state, const std::string& text) {
  for (const int32_t token : TinyTokenizer().EncodePlain(text)) {
    const bool allowed = Allows(state, token);
    if (!allowed) return false;
    EXPECT_EQ(*state->CountAllowed({&token, 1}), 1u) << text << ": " << token;
    const auto accepted = state->Accept(token);
    EXPECT_TRUE(accepted.ok() && *accepted) << accepted.status();
  }
  return true;
}

bool IsValid(const std::string& schema, const std::string& text) {
  const auto state = StateOf(schema);
  return Accepts(state.get(), text) && (state->MustEnd() || Allows(state.get(), kEos));
}

absl::Status RefusalOf(const std::string& schema, bool lenient = false) {
  return Grammars().Compile({schema, {}, lenient}).status();
}

constexpr char kCall[] = R"({"type": "object", "properties": {
  "name": {"const": "look"}, "parameters": {"type": "object", "properties": {
    "where": {"type": "string", "maxLength": 20}}, "required": ["where"]}},
  "required": ["name", "parameters"]})";

TEST(GrammarTest, TextIsCanonical) {
  EXPECT_TRUE(IsValid(kCall, R"({"name": "look", "parameters": {"where": "the sea"}})"));
  EXPECT_FALSE(IsValid(kCall, R"({"name":"look", "parameters": {"where": "the sea"}})"));
  EXPECT_FALSE(IsValid(kCall, R"({"name": "look","parameters": {"where": "the sea"}})"));
  EXPECT_FALSE(IsValid(kCall, R"({ "name": "look", "parameters": {"where": "the sea"}})"));
  EXPECT_FALSE(IsValid(kCall, R"({"parameters": {"where": "the sea"}, "name": "look"})"));
  EXPECT_FALSE(IsValid(R"({"type": "string"})", R"("\u0041")"));
  EXPECT_TRUE(IsValid(R"({"type": "string"})", R"("\n\t\"\\ é 日本")"));
}

TEST(GrammarTest, UnlistedPropertyIsRefused) {
  EXPECT_FALSE(IsValid(R"({"properties": {"a": {}}})", R"({"b": 1})"));
  EXPECT_TRUE(IsValid(R"({"properties": {"a": {}}, "additionalProperties": true})", R"({"b": 1})"));
  EXPECT_TRUE(IsValid(R"({"type": "object"})", R"({"b": 1, "c": [{}]})"));
  EXPECT_TRUE(IsValid(R"({"properties": {"a": {}}, "required": ["b"]})", R"({"b": 1})"));
}

TEST(GrammarTest, SpecialTokensAreNotText) {
  const auto state = StateOf(R"({"type": "string"})");
  ASSERT_TRUE(Accepts(state.get(), "\""));
  for (int32_t id = 0; id < TinyTokenizer().size(); ++id) {
    if (TinyTokenizer().IsSpecial(id)) {
      EXPECT_FALSE(Allows(state.get(), id)) << id;
    }
  }
  // The characters of a special token's name are ordinary text.
  EXPECT_TRUE(Accepts(state.get(), "<end_of_turn>\""));
}

TEST(GrammarTest, EndTokenNeedsCompleteText) {
  const auto number = StateOf(R"({"type": "integer"})");
  EXPECT_FALSE(Allows(number.get(), kEos));
  ASSERT_TRUE(Accepts(number.get(), "12"));
  EXPECT_TRUE(Allows(number.get(), kEos));
  EXPECT_FALSE(number->MustEnd());
  const auto call = StateOf(kCall);
  ASSERT_TRUE(Accepts(call.get(), R"({"name": "look", "parameters": {"where": "the sea"})"));
  EXPECT_FALSE(call->MustEnd());
  ASSERT_TRUE(Accepts(call.get(), "}"));
  EXPECT_TRUE(call->MustEnd());
  EXPECT_TRUE(Allows(call.get(), kEos));
}

TEST(GrammarTest, ForcedTokensAreOnlyPossibleText) {
  const auto state = StateOf(kCall);
  const std::string begin = R"({"name": "look", "parameters": {"where": ")";
  std::string forced;
  for (std::vector<int32_t> ids = state->Forced(4); !ids.empty(); ids = state->Forced(4)) {
    ASSERT_LE(ids.size(), 4u);
    EXPECT_EQ(*state->CountAllowed(ids), ids.size());
    forced += TinyTokenizer().Decode(ids, false);
    for (const int32_t id : ids) ASSERT_TRUE(*state->Accept(id));
  }
  EXPECT_THAT(begin, StartsWith(forced));
  EXPECT_GT(forced.size(), begin.size() / 2);
}

TEST(GrammarTest, StatesAreIndependent) {
  const auto grammar = Grammars().Compile({kCall, {}, false});
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  const auto one = (*grammar)->NewState(), other = (*grammar)->NewState();
  EXPECT_TRUE(Accepts(one.get(), R"({"name": "look", "parameters")"));
  EXPECT_TRUE(Accepts(other.get(), R"({"name": ")"));
  EXPECT_TRUE(Accepts(one.get(), R"(: {"where": "")"));
  EXPECT_FALSE(Accepts(other.get(), "lamp"));
}

TEST(GrammarTest, ContinuedGrammarBeginsAfterDrawnTokens) {
  for (const std::vector<std::string>& triggers : {std::vector<std::string>(), {"{\"name\":"}}) {
    const auto grammar = Grammars().Compile({kCall, triggers, false});
    ASSERT_TRUE(grammar.ok()) << grammar.status();
    const std::vector<int32_t> drawn = TinyTokenizer().EncodePlain(R"({"name": "look", )");
    int calls = 0;
    const auto go_on = [&] {
      ++calls;
      return absl::OkStatus();
    };
    const auto continued = ContinueGrammar(**grammar, drawn, go_on);
    ASSERT_TRUE(continued.ok()) << continued.status();
    EXPECT_EQ(calls, 1);
    EXPECT_EQ((*continued)->spec()->json_schema, (*grammar)->spec()->json_schema);
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(Accepts((*continued)->NewState().get(), R"("parameters": {"where": ""}})"));
    }
    const auto cancelled = [] { return absl::CancelledError("enough"); };
    EXPECT_EQ(ContinueGrammar(**grammar, drawn, cancelled).status(),
              absl::CancelledError("enough"));
  }
  const auto grammar = Grammars().Compile({kCall, {}, false});
  const std::vector<int32_t> wrong = TinyTokenizer().EncodePlain("the sea");
  const absl::Status refused =
      ContinueGrammar(**grammar, wrong, [] { return absl::OkStatus(); }).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("tokens do not obey the grammar: token 0: "), HasSubstr("token")));
}

// A model's vocabulary may be larger than the tokenizer's.
TEST(GrammarTest, UnknownTokenIsNotAllowed) {
  const auto state = StateOf(kCall);
  std::vector<int32_t> ids = state->Forced(2);
  ASSERT_FALSE(ids.empty());
  const size_t known = ids.size();
  ids.push_back(TinyTokenizer().size());
  ids.push_back(-1);
  EXPECT_EQ(*state->CountAllowed(ids), known);
  EXPECT_TRUE(Accepts(state.get(), R"({"name": ")"));
}

TEST(GrammarTest, CheckedSchemaCompilesToSameSchema) {
  const auto grammar = Grammars().Compile({kCall, {"{\"name\":"}, false});
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  const auto again = Grammars().Compile(*(*grammar)->spec());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->spec()->json_schema, (*grammar)->spec()->json_schema);
}

TEST(GrammarTest, RefusalNamesPath) {
  const char* const two =
      R"({"properties": {"a": {"oneOf": [{"type": "string"}, {"maxLength": 3}]}}})";
  EXPECT_THAT(std::string(RefusalOf(two).message()),
              AllOf(StartsWith("grammar.json_schema: #/properties/a: "), HasSubstr("oneOf")));
  const char* const lookahead = R"x({"items": {"pattern": "(?=a)"}})x";
  EXPECT_THAT(std::string(RefusalOf(lookahead).message()),
              StartsWith("grammar.json_schema: #/items/pattern: "));
  EXPECT_EQ(RefusalOf(lookahead).message().find('\n'), absl::string_view::npos);
  EXPECT_TRUE(RefusalOf(lookahead, /*lenient=*/true).ok());
  EXPECT_EQ(RefusalOf("false").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(RefusalOf(R"({"type": "integer", "minimum": 2, "maximum": 1})").code(),
            absl::StatusCode::kInvalidArgument);
}

// Errors of the library say what to change in the schema.
TEST(GrammarTest, LibraryErrorsNameTheCure) {
  const std::string prefix = "grammar.json_schema: ";
  const auto refusal = [](const std::string& schema, bool lenient = false) {
    return std::string(RefusalOf(schema, lenient).message());
  };
  EXPECT_EQ(refusal(R"({"oneOf": [{"type": "string"}, {"maxLength": 3}]})"),
            prefix +
                "#: oneOf is enforced only if its schemas have different types, or different "
                "constants for a required property; use anyOf");
  EXPECT_EQ(refusal(R"({"allOf": [{"type": "string", "pattern": "^.*a.{100}$"}, )"
                    R"({"pattern": "^.*b.{137}$"}]})"),
            prefix +
                "#: the patterns and formats that one string must obey need too much work; "
                "use one simple pattern");
  EXPECT_EQ(refusal(R"({"enum": []})", /*lenient=*/true),
            prefix + "#: no text satisfies the schema: an enum or anyOf must not be empty");
  EXPECT_EQ(refusal(R"({"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, )"
                    R"("minProperties": 2})"),
            prefix +
                "#: minProperties and maxProperties are enforced only if all listed "
                "properties are required, or if a closed object must have exactly one more "
                "property");
  const std::string name(60'000, 'x');
  EXPECT_LT(refusal(R"({"type": "object", "properties": {")" + name +
                    R"(": false}, "required": [")" + name + "\"]}")
                .size(),
            400u);
}

TEST(GrammarTest, EndlessReferenceIsRefused) {
  EXPECT_EQ(RefusalOf(R"({"$ref": "#"})"),
            absl::InvalidArgumentError("grammar.json_schema: no text satisfies the schema"));
  const char* const cycle =
      R"({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"})";
  EXPECT_EQ(RefusalOf(cycle).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(RefusalOf(R"({"type": "array", "items": {"$ref": "#"}})").ok());
}

TEST(GrammarTest, TriggersOverLimitsAreRefused) {
  const auto refusal = [](std::vector<std::string> triggers) {
    return std::string(Grammars().Compile({"{}", std::move(triggers), false}).status().message());
  };
  EXPECT_THAT(refusal(std::vector<std::string>(17, "{")), HasSubstr("at most 16 triggers; got 17"));
  EXPECT_THAT(refusal({std::string(65, '{')}), HasSubstr("1 to 64 bytes"));
  EXPECT_THAT(refusal({""}), HasSubstr("got 0 bytes"));
  EXPECT_THAT(refusal({"a\nb"}), HasSubstr("must be one line"));
}

TEST(GrammarTriggerTest, TextAfterTriggerObeysSchema) {
  const std::vector<std::string> triggers = {R"({"name":)", R"([{"name":)"};
  for (const char* before : {"", "  ", "the sea\n", "the sea\n\n ", "```json\n", "```\n"}) {
    const auto state = StateOf(kCall, triggers);
    EXPECT_TRUE(Accepts(state.get(), std::string(before) + R"({"name":)")) << before;
    EXPECT_FALSE(state->MustEnd());
    EXPECT_FALSE(Allows(state.get(), kEos));
    EXPECT_TRUE(Accepts(state.get(), R"( "look", "parameters": {"where": ""}})")) << before;
    EXPECT_TRUE(state->MustEnd());
  }
}

TEST(GrammarTriggerTest, TextWithoutTriggerIsFree) {
  const std::vector<std::string> triggers = {R"({"name":)"};
  for (const char* text : {R"(the {"name": 7 lamp)", R"({"names": 1)", R"({"name" : 1)",
                           "{\"name\n\":", R"(x{"name":)", R"([{"name": "look")"}) {
    const auto state = StateOf(kCall, triggers);
    EXPECT_TRUE(Accepts(state.get(), text)) << text;
    EXPECT_TRUE(Allows(state.get(), kEos)) << text;
    EXPECT_TRUE(state->Forced(5).empty());
  }
}

// The token completes the trigger and has more text, which the schema does not allow.
TEST(GrammarTriggerTest, TokenBeyondTriggerIsDrawnAgain) {
  std::vector<VocabularyPiece> pieces;
  const auto add = [&](const std::string& text, PieceType type) {
    VocabularyPiece piece;
    piece.text = text;
    piece.type = type;
    piece.score = -static_cast<float>(pieces.size());
    pieces.push_back(piece);
  };
  add("<eos>", PieceType::kControl);
  add("<unk>", PieceType::kUnknown);
  for (int byte = 0; byte < 256; ++byte) {
    const char* const digits = "0123456789ABCDEF";
    add(std::string("<0x") + digits[byte / 16] + digits[byte % 16] + ">", PieceType::kByte);
  }
  for (const char* text :
       {"\":\"", "\":\xE2\x96\x81", "{", "\"", ":", "n", "l", "}", "\xE2\x96\x81"}) {
    add(text, PieceType::kNormal);
  }
  const auto tokenizer = Tokenizer::Make(pieces);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  GrammarEngine grammars(tokenizer->get(), {0}, (*tokenizer)->size());
  const auto grammar = grammars.Compile(
      {R"({"properties": {"n": {"const": "l"}}, "required": ["n"]})", {R"({"n":)"}, false});
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  const auto state = (*grammar)->NewState();
  for (const char* text : {"{", "\"", "n"}) {
    const int32_t id = *(*tokenizer)->FindPiece(text);
    EXPECT_TRUE(Allows(state.get(), id));
    EXPECT_TRUE(*state->Accept(id));
  }
  const int32_t wrong = *(*tokenizer)->FindPiece("\":\"");
  EXPECT_TRUE(Allows(state.get(), wrong)) << "free text";
  const auto accepted = state->Accept(wrong);
  ASSERT_TRUE(accepted.ok()) << accepted.status();
  EXPECT_FALSE(*accepted);
  EXPECT_FALSE(Allows(state.get(), wrong));
  EXPECT_TRUE(Allows(state.get(), 0)) << "still free text";
  const int32_t quote = *(*tokenizer)->FindPiece("\"");
  EXPECT_TRUE(Allows(state.get(), quote));
  EXPECT_TRUE(*state->Accept(quote));
  EXPECT_TRUE(Allows(state.get(), wrong));
  EXPECT_TRUE(*state->Accept(*(*tokenizer)->FindPiece(":")));
  EXPECT_FALSE(Allows(state.get(), 0)) << "the trigger is complete";
}

}  // namespace
}  // namespace hearth
