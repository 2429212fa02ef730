#include "services/openai/openai_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <time.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/openai/responses_request.h"
#include "tests/services/openai/hostile_bodies.h"
#include "tests/support/sanitized.h"

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

OpenAiRequest Chat(const std::string& text) {
  const auto body = ParseBody(text);
  EXPECT_TRUE(body.ok()) << body.status();
  auto request = ParseChat(body->root());
  EXPECT_TRUE(request.ok()) << request.status();
  return *std::move(request);
}

std::string ChatError(const std::string& fields) {
  const bool has_messages = fields.rfind("\"messages\"", 0) == 0;
  const auto body = ParseBody(absl::StrCat(
      "{", has_messages ? "" : R"("messages": [{"role": "user", "content": "a"}], )", fields, "}"));
  EXPECT_TRUE(body.ok()) << body.status();
  return std::string(ParseChat(body->root()).status().message());
}

TEST(OpenAiRequest, OmittedChatFieldsTakeDefaults) {
  const OpenAiRequest request = Chat(
      R"({"model": "m", "messages": [{"role": "user", "content": "hello"}], "nobody": {"knows": 1},
          "tools": [], "tool_choice": "none", "presence_penalty": 0, "user": "x"})");
  ASSERT_EQ(request.prompts.size(), 1u);
  const v1::GenerateRequest& made = request.common;
  EXPECT_EQ(request.model, "m");
  EXPECT_FALSE(request.stream);
  EXPECT_TRUE(made.sampling().server_defaults());
  EXPECT_FALSE(made.sampling().has_temperature() || made.sampling().has_top_p() ||
               made.sampling().has_top_k() || made.sampling().has_seed());
  EXPECT_EQ(made.n(), 1u);
  EXPECT_EQ(made.max_new_tokens(), 4096u);
  EXPECT_TRUE(made.fits_context());
  EXPECT_TRUE(request.prompts[0].chat().strict());
  EXPECT_EQ(request.prompts[0].chat().messages(0).parts(0).text(), "hello");
}

TEST(OpenAiRequest, ChatFieldsAreParsed) {
  const OpenAiRequest request = Chat(
      R"({"messages": [{"role": "developer", "content": "s"}, {"role": "user", "content": "a"}],
          "stream": true, "stream_options": {"include_usage": true}, "n": 2, "seed": 3,
          "temperature": 0, "top_p": 0.5, "max_completion_tokens": 5, "stop": ["x", "y"],
          "top_k": 9, "min_p": 0.25, "presence_penalty": -1, "frequency_penalty": 0.5,
          "repetition_penalty": 1.25, "logit_bias": {"7": -100, "8": 1.5}, "min_tokens": 4,
          "stop_token_ids": [5], "bad_token_ids": [6, 7],
          "logprobs": true, "top_logprobs": 4})");
  const v1::GenerateRequest& made = request.common;
  EXPECT_TRUE(request.stream && request.include_usage && request.logprobs);
  EXPECT_EQ(made.n(), 2u);
  EXPECT_EQ(made.sampling().seed(), 3u);
  EXPECT_EQ(made.sampling().temperature(), 0);
  EXPECT_EQ(made.sampling().top_p(), 0.5f);
  EXPECT_EQ(made.sampling().logprobs(), 4u);
  EXPECT_EQ(made.sampling().top_k(), 9u);
  EXPECT_EQ(made.sampling().min_p(), 0.25f);
  EXPECT_EQ(made.sampling().presence_penalty(), -1);
  EXPECT_EQ(made.sampling().frequency_penalty(), 0.5f);
  EXPECT_EQ(made.sampling().repetition_penalty(), 1.25f);
  EXPECT_EQ(made.sampling().logit_bias().at(7), -100);
  EXPECT_EQ(made.sampling().logit_bias().at(8), 1.5f);
  EXPECT_EQ(made.sampling().min_tokens(), 4u);
  EXPECT_EQ(made.sampling().stop_token_ids(0), 5u);
  EXPECT_EQ(made.sampling().bad_token_ids_size(), 2);
  EXPECT_EQ(made.max_new_tokens(), 5u);
  EXPECT_EQ(made.stop_size(), 2);
  EXPECT_EQ(request.prompts[0].chat().messages(0).role(), "system");
}

TEST(OpenAiRequest, TopKMinusOneMeansAll) {
  const OpenAiRequest request =
      Chat(R"({"messages": [{"role": "user", "content": "a"}], "top_k": -1})");
  EXPECT_TRUE(request.common.sampling().has_top_k());
  EXPECT_EQ(request.common.sampling().top_k(), 0u);
}

TEST(OpenAiRequest, SystemTextGetsDefaultBreakpoint) {
  const std::string system = R"({"role": "system", "content": "s"})";
  const std::string plain = R"({"role": "user", "content": "a"})";
  const std::string marked = R"({"role": "user", "content": [{"type": "text", "text": "doc",
      "prompt_cache_breakpoint": {"mode": "explicit", "ttl": "1h"}},
      {"type": "text", "text": "q"}]})";
  const auto of = [&](const std::string& messages, const std::string& more) {
    return Chat(R"({"messages": [)" + messages + "]" + more + "}");
  };
  const auto keeps = [](const OpenAiRequest& request, int message) {
    return request.prompts[0].chat().messages(message).parts(0).cache_breakpoint();
  };
  EXPECT_TRUE(keeps(of(system + "," + plain, ""), 0));
  EXPECT_FALSE(
      keeps(of(system + "," + plain, R"(, "prompt_cache_options": {"mode": "explicit"})"), 0));
  const OpenAiRequest said = of(system + "," + marked, R"(, "prompt_cache_options": {"ttl": "5m", )"
                                                       R"("keep": "10m", "priority": -8})");
  EXPECT_FALSE(keeps(said, 0));
  EXPECT_TRUE(keeps(said, 1));
  EXPECT_EQ(said.common.ttl_s(), 3600u);
  EXPECT_EQ(said.common.keep_s(), 600u);
  EXPECT_EQ(said.common.priority(), -8);
  EXPECT_TRUE(of(plain, R"(, "prompt_cache_options": {"prewarm": true})").prewarm);
  EXPECT_EQ(of(plain, R"(, "prompt_cache_key": "k")").cache_key, "k");
}

TEST(OpenAiRequest, LastLeadingSystemMessageGetsBreakpoint) {
  const OpenAiRequest request = Chat(
      R"({"messages": [{"role": "system", "content": "s"}, {"role": "developer", "content": "t"},
          {"role": "user", "content": "a"}, {"role": "system", "content": "u"}]})");
  const v1::Chat& chat = request.prompts[0].chat();
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(chat.messages(i).parts(0).cache_breakpoint(), i == 1) << i;
  }
}

TEST(OpenAiRequest, OnlyAssistantMayOmitContent) {
  for (const char* answer : {R"("content": null)", R"("refusal": null)", R"("content": [])"}) {
    const OpenAiRequest request =
        Chat(absl::StrCat(R"({"messages": [{"role": "user", "content": "a"},
                             {"role": "assistant", )",
                          answer, "}]}"));
    EXPECT_EQ(request.prompts[0].chat().messages(1).role(), "assistant");
    EXPECT_EQ(request.prompts[0].chat().messages(1).parts_size(), 0);
  }
  for (const char* role : {"system", "user"}) {
    EXPECT_EQ(ChatError(absl::StrCat(R"("messages": [{"role": "user", "content": "a"}, {"role": ")",
                                     role, R"(", "content": null}])")),
              "messages[1].content: is missing");
  }
  EXPECT_EQ(
      ChatError(R"("messages": [{"role": "user", "content": "a"}, {"role": "function"}])"),
      "messages[1].role: must be system, developer, user, assistant or tool; got \"function\"");
}

TEST(OpenAiRequest, CacheTtlFormsAreParsed) {
  const auto read = [](const std::string& json) {
    return ParseCacheTtl(JsonDocument::Parse(json, "ttl")->root());
  };
  EXPECT_EQ(read("\"5m\"").value(), 300u);
  EXPECT_EQ(read("\"12h\"").value(), 43200u);
  EXPECT_EQ(read("90").value(), 90u);
  for (const char* wrong :
       {"\"soon\"", "\"0m\"", "-1", "\"99999d\"", "\"m\"", "\"\"", "1e300", "{}", "null"}) {
    EXPECT_THAT(std::string(read(wrong).status().message()),
                StartsWith("ttl: must be \"5m\", \"1h\" or a number of seconds"))
        << wrong;
  }
}

TEST(OpenAiRequest, PromptFormsAreParsed) {
  const auto read = [](const std::string& prompt) {
    const auto body = ParseBody(R"({"prompt": )" + prompt + "}");
    return ParseCompletion(body->root(), 4);
  };
  EXPECT_EQ(read(R"("a")")->prompts[0].text(), "a");
  EXPECT_EQ(read(R"("a")")->common.max_new_tokens(), 16u);
  EXPECT_EQ(read(R"(["a", "b"])")->prompts[1].text(), "b");
  EXPECT_EQ(read("[1, 2]")->prompts[0].token_ids().ids(1), 2u);
  EXPECT_EQ(read("[[1], [2, 3]]")->prompts[1].token_ids().ids(1), 3u);
  for (const char* wrong : {"3", "[]", "[[]]", "[1, \"a\"]", "[1, -2]", "{}", "[4294967296]"}) {
    EXPECT_THAT(std::string(read(wrong).status().message()), StartsWith("prompt")) << wrong;
  }
  EXPECT_EQ(read("[1, \"a\"]").status().message(),
            "prompt[1]: must be a token id below 4294967296; got \"a\"");
}

TEST(OpenAiRequest, SixtyFourFullPromptsAreAccepted) {
  const std::string ids = "[" + absl::StrJoin(std::vector<int>(20000, 7), ",") + "]";
  const std::string lists = absl::StrJoin(std::vector<std::string>(64, ids), ",");
  const auto body = ParseBody(absl::StrCat("{\"prompt\":[", lists, "]}"));
  ASSERT_TRUE(body.ok()) << body.status();
  EXPECT_EQ(ParseCompletion(body->root(), 20000)->prompts.size(), 64u);
  EXPECT_EQ(ParseCompletion(body->root(), 19999).status().message(),
            "prompt[0]: This model's maximum context length is 19999 tokens, the prompt has 20000: "
            "the prompt is too long");
}

TEST(OpenAiRequest, ListsOverGrpcLimitsRefused) {
  const auto list = [](size_t count, const std::string& item) {
    return "[" + absl::StrJoin(std::vector<std::string>(count, item), ",") + "]";
  };
  EXPECT_EQ(ChatError("\"stop\": " + list(16, "\"x\"")), "");
  EXPECT_EQ(ChatError("\"stop\": " + list(17, "\"x\"")),
            "stop: must have at most 16 strings; got 17");
  EXPECT_THAT(ChatError("\"stop\": \"" + std::string(257, 'a') + "\""),
              StartsWith("stop: must be a string of 1 to 256 bytes; got "));
  EXPECT_THAT(ChatError(absl::StrCat("\"stop\": [\"a\", \"", std::string(257, 'a'), "\"]")),
              StartsWith("stop[1]: must be a string of 1 to"));
  for (const std::string name : {"stop_token_ids", "bad_token_ids"}) {
    EXPECT_EQ(ChatError(absl::StrCat("\"", name, "\": ", list(1024, "3"))), "");
    EXPECT_EQ(ChatError(absl::StrCat("\"", name, "\": ", list(1025, "3"))),
              name + ": must have at most 1024 token ids; got 1025");
  }
  EXPECT_EQ(ChatError("\"logit_bias\": " + ObjectOfKeys(1024, "", "1")), "");
  EXPECT_THAT(
      std::string(
          ParseBody("{\"logit_bias\": " + ObjectOfKeys(1025, "", "1") + "}").status().message()),
      StartsWith("logit_bias: must have at most 1024 keys"));
  EXPECT_THAT(ChatError("\"prompt_cache_key\": \"" + std::string(1025, 'a') + "\""),
              StartsWith("prompt_cache_key: must be a string of at most 1024 bytes; got "));
}

// An earlier version used nlohmann's parser callback and took 114 s for 1 MB of objects, because
// the callback walks the parent at the end of each object.
TEST(OpenAiRequest, HostileBodyParsedInHalfSecond) {
  constexpr double kMostSeconds = kIsSanitized ? 10 : 0.5;
  const auto seconds = [] {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
  };
  for (const auto& [name, body] : HostileBodies()) {
    SCOPED_TRACE(name);
    EXPECT_LE(body.size(), kHostileBytes);
    EXPECT_GT(body.size(), kHostileBytes / 2);
    uint64_t held = 0;
    const auto hold = [&](uint64_t bytes) {
      held += bytes;
      return true;
    };
    const double begin = seconds();
    std::string said = "fine";
    if (const auto parsed = ParseBody(body, hold); !parsed.ok()) {
      said = std::string(parsed.status().message());
    } else {
      const bool is_chat = parsed->root().Find("messages").has_value();
      const bool is_response = parsed->root().Find("input").has_value();
      const auto request = is_response ? ParseResponses(parsed->root())
                           : is_chat   ? ParseChat(parsed->root())
                                       : ParseCompletion(parsed->root(), 32768);
      if (request.ok()) {
        EXPECT_LE(request->bytes(), 16 * body.size());
      } else {
        said = std::string(request.status().message());
      }
    }
    const double took = seconds() - begin;
    EXPECT_LE(took, kMostSeconds);
    EXPECT_LE(held, 9 * body.size() + 1024);
    EXPECT_LE(said.size(), 500u) << said;
    RecordProperty(absl::StrCat("ms of ", name), static_cast<int>(took * 1000));
  }
}

TEST(OpenAiRequest, UnsupportedFeatureRefusedByName) {
  EXPECT_THAT(ChatError(R"("tools": [{"type": "function"}])"), StartsWith("tools[0]: "));
  EXPECT_THAT(ChatError(R"("response_format": {"type": "json"})"),
              StartsWith("response_format.type: "));
  EXPECT_THAT(ChatError(R"("cache_salt": "x")"), HasSubstr("--identities-file"));
  EXPECT_THAT(ChatError(R"("messages": [{"role": "user", "content": [{"type": "image_url"}]}])"),
              StartsWith("messages[0].content[0]: must be a part of type \"text\", the only"));
}

TEST(OpenAiRequest, BreakpointFieldAliasesAreEqual) {
  const std::string text = R"({"role": "user", "content": [{"type": "text", "text": "a")";
  for (const std::string& message :
       {text + R"(, "cache_control": {"type": "ephemeral", "ttl": "1h"}}]})",
        text + R"(, "cache_breakpoint": {"ttl": "1h"}}]})",
        text + R"(, "prompt_cache_breakpoint": {"ttl": "1h"}}]})",
        text + R"(}], "cache_control": {"type": "ephemeral", "ttl": "1h"}})",
        std::string(R"({"role": "user", "content": "a", "cache_control": {"ttl": "1h"}})")}) {
    const OpenAiRequest request = Chat(R"({"messages": [)" + message + "]}");
    EXPECT_TRUE(request.prompts[0].chat().messages(0).parts(0).cache_breakpoint()) << message;
    EXPECT_EQ(request.common.ttl_s(), 3600u) << message;
  }
  EXPECT_EQ(Chat(R"({"messages": [{"role": "user", "content": "a"}], "cache_prompt": false})")
                .common.cache(),
            v1::CACHE_MODE_OFF);
}

TEST(OpenAiRequest, TokenPromptsAreTruncated) {
  const auto read = [](const std::string& more) {
    const auto body =
        ParseBody(R"({"prompt": [[1, 2, 3, 4, 5, 6], [7]], "max_tokens": 3, )" + more + "}");
    const auto request = ParseCompletion(body->root(), 5);
    if (!request.ok()) return std::string(request.status().message());
    std::string text;
    for (const v1::PromptInput& prompt : request->prompts) {
      absl::StrAppend(&text, absl::StrJoin(prompt.token_ids().ids(), " "), ";");
    }
    return text;
  };
  EXPECT_EQ(read(R"("truncate_prompt_tokens": 2)"), "5 6;7;");
  EXPECT_EQ(read(R"("truncate_prompt_tokens": 2, "truncation_side": "left")"), "5 6;7;");
  EXPECT_EQ(read(R"("truncate_prompt_tokens": 2, "truncation_side": "right")"), "1 2;7;");
  EXPECT_EQ(read(R"("truncate_prompt_tokens": -1)"), "5 6;7;");
  EXPECT_EQ(read(R"("truncate_prompt_tokens": -1, "max_completion_tokens": 4)"), "6;7;");
  EXPECT_EQ(read(R"("truncate_prompt_tokens": -1, "max_completion_tokens": 5)"),
            "truncate_prompt_tokens: -1 needs max_completion_tokens below the context of 5 tokens; "
            "got 5");
  EXPECT_THAT(read(R"("truncate_prompt_tokens": 6)"), StartsWith("truncate_prompt_tokens: must"));
  EXPECT_THAT(read(R"("truncate_prompt_tokens": 0)"), StartsWith("truncate_prompt_tokens: must"));
  EXPECT_THAT(read(R"("truncation_side": "up")"), StartsWith("truncation_side: must be left or"));
  EXPECT_THAT(read(R"("seed": 1)"),
              StartsWith("prompt[0]: This model's maximum context length is 5 tokens"));
  const auto body = ParseBody(R"({"prompt": "a", "truncate_prompt_tokens": 2})");
  EXPECT_EQ(ParseCompletion(body->root()).status().message(),
            "truncate_prompt_tokens: needs a prompt of token ids");
}

TEST(OpenAiRequest, LogitBiasAcceptsPairs) {
  const OpenAiRequest request = Chat(
      R"({"messages": [{"role": "user", "content": "a"}], "logit_bias": [[7, 1.5], [8, false]]})");
  EXPECT_EQ(request.common.sampling().logit_bias().at(7), 1.5f);
  EXPECT_EQ(request.common.sampling().bad_token_ids(0), 8u);
  for (const char* wrong : {"[7]", "[[7]]", "[[7, true]]", "[[-1, 2]]", "[[\"a\", 2]]"}) {
    EXPECT_THAT(ChatError(absl::StrCat("\"logit_bias\": ", wrong)), StartsWith("logit_bias["))
        << wrong;
  }
}

TEST(OpenAiRequest, ContinueFinalMessageIsParsed) {
  const std::string begin =
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])";
  EXPECT_TRUE(Chat(begin + R"(, "continue_final_message": true})")
                  .prompts[0]
                  .chat()
                  .continue_final_message());
  const OpenAiRequest both =
      Chat(begin + R"(, "continue_final_message": true, "add_generation_prompt": false})");
  EXPECT_TRUE(both.prompts[0].chat().continue_final_message());
  EXPECT_FALSE(both.prompts[0].chat().omit_generation_prompt());
  const OpenAiRequest closed = Chat(begin + R"(, "add_generation_prompt": false})");
  EXPECT_TRUE(closed.prompts[0].chat().omit_generation_prompt());
  EXPECT_THAT(ChatError(R"("continue_final_message": true)"),
              StartsWith("continue_final_message: must be false, unless"));
}

TEST(OpenAiRequest, EchoWithZeroTokensRequestsOneToken) {
  const auto body = ParseBody(R"({"prompt": "a", "echo": true, "logprobs": 1, "max_tokens": 0,
                                  "min_tokens": 3})");
  const auto request = ParseCompletion(body->root());
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_TRUE(request->only_echo);
  EXPECT_EQ(request->common.max_new_tokens(), 1u);
  EXPECT_EQ(request->common.sampling().prompt_logprobs(), 1u);
  EXPECT_EQ(request->common.sampling().min_tokens(), 0u);
}

TEST(OpenAiRequest, ErrorNamesWrongField) {
  EXPECT_THAT(ChatError(R"("temperature": "hot")"), StartsWith("temperature: "));
  EXPECT_THAT(ChatError(R"("n": 1.5)"),
              StartsWith("n: must be a whole number from 1 to 16; got 1.5"));
  EXPECT_THAT(ChatError(R"("logit_bias": {"a": 1})"),
              StartsWith("logit_bias: must have token ids as keys; got \"a\""));
  EXPECT_THAT(ChatError(R"("logit_bias": 1)"), StartsWith("logit_bias: "));
  EXPECT_THAT(ChatError(R"("bad_token_ids": [-1])"),
              StartsWith("bad_token_ids[0]: must be a token id below"));
  EXPECT_THAT(ChatError(R"("min_p": 2)"), StartsWith("min_p: must be a number from 0 to 1; got 2"));
  EXPECT_THAT(ChatError(R"("presence_penalty": 3)"),
              StartsWith("presence_penalty: must be a number from -2 to 2; got 3"));
  EXPECT_THAT(ChatError(R"("n": 17)"),
              StartsWith("n: must be a whole number from 1 to 16; got 17"));
  EXPECT_THAT(ChatError(R"("seed": -2)"), StartsWith("seed: "));
  EXPECT_THAT(ChatError(R"("max_tokens": 0)"), StartsWith("max_tokens: "));
  EXPECT_EQ(ChatError(R"("top_logprobs": 2)"), "top_logprobs: needs \"logprobs\": true");
  EXPECT_EQ(ChatError(R"("n": 2, "n_cmpl": 3)"), "n_cmpl: must equal n, which is 2; got 3");
  EXPECT_EQ(ChatError(R"("n_cmpl": 2, "best_of": 3)"),
            "best_of: must equal n_cmpl, which is 2; got 3");
  EXPECT_THAT(ChatError(R"("repeat_penalty": 1.1, "repetition_penalty": 1.2)"),
              StartsWith("repeat_penalty: must equal repetition_penalty, which is 1.2; got 1.1"));
  EXPECT_THAT(ChatError(R"("repeat_penalty": 1.1, "repeat_last_n": 64)"),
              StartsWith("repeat_last_n: must be -1 if a penalty is set: "));
  EXPECT_THAT(ChatError(R"("add_generation_prompt": false)"),
              StartsWith("add_generation_prompt: must be true, unless"));
  EXPECT_THAT(ChatError(R"("stream": 1)"), StartsWith("stream: "));
  EXPECT_THAT(ChatError(R"("stop": 5)"), StartsWith("stop: "));
  EXPECT_THAT(ChatError(R"("messages": [])"), StartsWith("messages: "));
  EXPECT_THAT(ChatError(R"("messages": [{"role": "user"}])"), StartsWith("messages[0].content: "));
  EXPECT_THAT(ChatError(R"("messages": ["x"])"), StartsWith("messages[0]: "));
  for (const char* priority : {"9", "-9", "0.5", "18446744073709551615", "\"high\""}) {
    EXPECT_THAT(ChatError(R"("prompt_cache_options": {"priority": )" + std::string(priority) + "}"),
                AllOf(StartsWith("prompt_cache_options.priority: must be a "), HasSubstr("number"),
                      HasSubstr("; got ")));
  }
  EXPECT_THAT(ChatError(R"("prompt_cache_options": {"keep": "long"})"),
              StartsWith("prompt_cache_options.keep: must be \"5m\""));
  EXPECT_THAT(ChatError(R"("cache_prompt": false, "prompt_cache_options": {"prewarm": true})"),
              StartsWith("prompt_cache_options.prewarm: must be false when cache_prompt"));
  EXPECT_THAT(ChatError(R"("prompt_cache_options": {"mode": "x"})"),
              StartsWith("prompt_cache_options.mode: "));
}

TEST(OpenAiRequest, WrongResponseFormatIsRefused) {
  EXPECT_EQ(ChatError(R"("response_format": {"type": "text"})"), "");
  for (const char* wrong :
       {"\"text\"", "[]", "5", "true", R"({"type": 5})", R"({"type": null})", R"({"type": {}})"}) {
    EXPECT_THAT(ChatError(absl::StrCat("\"response_format\": ", wrong)),
                AllOf(StartsWith("response_format"), HasSubstr("must ")))
        << wrong;
  }
}

TEST(OpenAiRequest, InvalidBodyIsRefused) {
  for (const std::string& wrong :
       {std::string(), std::string("[]"), std::string("{"), std::string("{\"a\": \"\xff\"}"),
        std::string(1 << 20, '['),
        "{\"a\":" + std::string(100, '[') + std::string(100, ']') + "}"}) {
    EXPECT_FALSE(ParseBody(wrong).ok()) << wrong.substr(0, 40);
  }
}

}  // namespace
}  // namespace hearth
