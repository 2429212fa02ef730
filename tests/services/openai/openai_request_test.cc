#include "services/openai/openai_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace hearth {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

OpenAiRequest Chat(const std::string& text) {
  const auto body = ParseBody(text);
  EXPECT_TRUE(body.ok()) << body.status();
  auto request = ParseChat(*body);
  EXPECT_TRUE(request.ok()) << request.status();
  return *std::move(request);
}

std::string ChatError(const std::string& fields) {
  const auto body =
      ParseBody(R"({"messages": [{"role": "user", "content": "a"}], )" + fields + "}");
  EXPECT_TRUE(body.ok()) << body.status();
  return std::string(ParseChat(*body).status().message());
}

TEST(OpenAiRequest, ReadsAChatWithWhatItLeavesOpen) {
  const OpenAiRequest request = Chat(
      R"({"model": "m", "messages": [{"role": "user", "content": "hello"}], "nobody": {"knows": 1},
          "tools": [], "tool_choice": "none", "presence_penalty": 0, "user": "x"})");
  ASSERT_EQ(request.generations.size(), 1u);
  const v1::GenerateRequest& made = request.generations[0];
  EXPECT_EQ(request.model, "m");
  EXPECT_FALSE(request.stream);
  EXPECT_TRUE(made.sampling().server_defaults());
  EXPECT_FALSE(made.sampling().has_temperature() || made.sampling().has_top_p() ||
               made.sampling().has_top_k() || made.sampling().has_seed());
  EXPECT_EQ(made.n(), 1u);
  EXPECT_EQ(made.max_new_tokens(), 4096u);
  EXPECT_TRUE(made.fits_context());
  EXPECT_TRUE(made.prompt().chat().strict());
  EXPECT_EQ(made.prompt().chat().messages(0).parts(0).text(), "hello");
}

TEST(OpenAiRequest, ReadsWhatAChatSays) {
  const OpenAiRequest request = Chat(
      R"({"messages": [{"role": "developer", "content": "s"}, {"role": "user", "content": "a"}],
          "stream": true, "stream_options": {"include_usage": true}, "n": 2, "seed": 3,
          "temperature": 0, "top_p": 0.5, "max_completion_tokens": 5, "stop": ["x", "y"],
          "top_k": 9, "min_p": 0.25, "presence_penalty": -1, "frequency_penalty": 0.5,
          "repetition_penalty": 1.25, "logit_bias": {"7": -100, "8": 1.5}, "min_tokens": 4,
          "stop_token_ids": [5], "bad_token_ids": [6, 7],
          "logprobs": true, "top_logprobs": 4})");
  const v1::GenerateRequest& made = request.generations[0];
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
  EXPECT_EQ(made.prompt().chat().messages(0).role(), "system");
}

TEST(OpenAiRequest, TakesAllTokensForATopKOfMinusOne) {
  const OpenAiRequest request =
      Chat(R"({"messages": [{"role": "user", "content": "a"}], "top_k": -1})");
  EXPECT_TRUE(request.generations[0].sampling().has_top_k());
  EXPECT_EQ(request.generations[0].sampling().top_k(), 0u);
}

TEST(OpenAiRequest, KeepsTheEndOfTheSystemTextUnlessBreakpointsAreSaid) {
  const std::string system = R"({"role": "system", "content": "s"})";
  const std::string plain = R"({"role": "user", "content": "a"})";
  const std::string marked = R"({"role": "user", "content": [{"type": "text", "text": "doc",
      "prompt_cache_breakpoint": {"mode": "explicit", "ttl": "1h"}},
      {"type": "text", "text": "q"}]})";
  const auto of = [&](const std::string& messages, const std::string& more) {
    return Chat(R"({"messages": [)" + messages + "]" + more + "}");
  };
  const auto keeps = [](const OpenAiRequest& request, int message) {
    return request.generations[0].prompt().chat().messages(message).parts(0).cache_breakpoint();
  };
  EXPECT_TRUE(keeps(of(system + "," + plain, ""), 0));
  EXPECT_FALSE(
      keeps(of(system + "," + plain, R"(, "prompt_cache_options": {"mode": "explicit"})"), 0));
  const OpenAiRequest said = of(system + "," + marked, R"(, "prompt_cache_options": {"ttl": "5m", )"
                                                       R"("keep": "10m", "priority": -8})");
  EXPECT_FALSE(keeps(said, 0));
  EXPECT_TRUE(keeps(said, 1));
  EXPECT_EQ(said.generations[0].ttl_s(), 3600u);
  EXPECT_EQ(said.generations[0].keep_s(), 600u);
  EXPECT_EQ(said.generations[0].priority(), -8);
  EXPECT_TRUE(of(plain, R"(, "prompt_cache_options": {"prewarm": true})").prewarm);
  EXPECT_EQ(of(plain, R"(, "prompt_cache_key": "k")").cache_key, "k");
}

TEST(OpenAiRequest, ReadsLifetimes) {
  EXPECT_EQ(ParseCacheTtl("5m").value(), 300u);
  EXPECT_EQ(ParseCacheTtl("12h").value(), 43200u);
  EXPECT_EQ(ParseCacheTtl(90u).value(), 90u);
  for (const nlohmann::json& wrong :
       {nlohmann::json("soon"), nlohmann::json("0m"), nlohmann::json(-1), nlohmann::json("99999d"),
        nlohmann::json("m"), nlohmann::json("")}) {
    EXPECT_THAT(std::string(ParseCacheTtl(wrong).status().message()), StartsWith("ttl: is "))
        << wrong;
  }
}

TEST(OpenAiRequest, ReadsPromptsOfAllForms) {
  const auto read = [](const std::string& prompt) {
    const auto body = ParseBody(R"({"prompt": )" + prompt + "}");
    return ParseCompletion(*body);
  };
  EXPECT_EQ(read(R"("a")")->generations[0].prompt().text(), "a");
  EXPECT_EQ(read(R"("a")")->generations[0].max_new_tokens(), 16u);
  EXPECT_EQ(read(R"(["a", "b"])")->generations[1].prompt().text(), "b");
  EXPECT_EQ(read("[1, 2]")->generations[0].prompt().token_ids().ids(1), 2u);
  EXPECT_EQ(read("[[1], [2, 3]]")->generations[1].prompt().token_ids().ids(1), 3u);
  for (const char* wrong : {"3", "[]", "[[]]", "[1, \"a\"]", "[1, -2]", "{}", "[4294967296]"}) {
    EXPECT_THAT(std::string(read(wrong).status().message()), StartsWith("prompt: ")) << wrong;
  }
}

TEST(OpenAiRequest, RefusesByNameWhatThisServerLacks) {
  EXPECT_THAT(ChatError(R"("tools": [{"type": "function"}])"), StartsWith("tools: "));
  EXPECT_THAT(ChatError(R"("response_format": {"type": "json_object"})"),
              StartsWith("response_format: "));
  EXPECT_THAT(ChatError(R"("cache_salt": "x")"), HasSubstr("--identities-file"));
  EXPECT_THAT(ChatError(R"("messages": [{"role": "user", "content": [{"type": "image_url"}]}])"),
              StartsWith(R"(messages[0].content: a part of type "image_url")"));
}

TEST(OpenAiRequest, NamesTheFieldThatIsWrong) {
  EXPECT_THAT(ChatError(R"("temperature": "hot")"), StartsWith("temperature: "));
  EXPECT_THAT(ChatError(R"("n": 1.5)"), StartsWith("n: is 1.5"));
  EXPECT_THAT(ChatError(R"("logit_bias": {"a": 1})"), StartsWith("logit_bias: \"a\": 1 is no"));
  EXPECT_THAT(ChatError(R"("logit_bias": [1])"), StartsWith("logit_bias: "));
  EXPECT_THAT(ChatError(R"("bad_token_ids": [-1])"), StartsWith("bad_token_ids: -1 is no"));
  EXPECT_THAT(ChatError(R"("min_p": 2)"), StartsWith("min_p: is 2"));
  EXPECT_THAT(ChatError(R"("presence_penalty": 3)"), StartsWith("presence_penalty: is 3"));
  EXPECT_THAT(ChatError(R"("n": 17)"), StartsWith("n: is 17"));
  EXPECT_THAT(ChatError(R"("seed": -1)"), StartsWith("seed: "));
  EXPECT_THAT(ChatError(R"("stream": 1)"), StartsWith("stream: "));
  EXPECT_THAT(ChatError(R"("stop": 5)"), StartsWith("stop: "));
  EXPECT_THAT(ChatError(R"("messages": [])"), StartsWith("messages: "));
  EXPECT_THAT(ChatError(R"("messages": [{"role": "user"}])"), StartsWith("messages[0].content: "));
  EXPECT_THAT(ChatError(R"("messages": ["x"])"), StartsWith("messages[0]: "));
  for (const char* priority : {"9", "-9", "0.5", "18446744073709551615", "\"high\""}) {
    EXPECT_THAT(ChatError(R"("prompt_cache_options": {"priority": )" + std::string(priority) + "}"),
                StartsWith("prompt_cache_options.priority: is " + std::string(priority) +
                           "; priorities are"));
  }
  EXPECT_THAT(ChatError(R"("prompt_cache_options": {"keep": "long"})"),
              StartsWith("prompt_cache_options.keep: is \"long\""));
  EXPECT_THAT(ChatError(R"("prompt_cache_options": {"mode": "x"})"),
              StartsWith("prompt_cache_options.mode: "));
}

TEST(OpenAiRequest, TakesNoBodyThatIsNoObject) {
  for (const std::string& wrong :
       {std::string(), std::string("[]"), std::string("{"), std::string("{\"a\": \"\xff\"}"),
        std::string(1 << 20, '['),
        "{\"a\":" + std::string(100, '[') + std::string(100, ']') + "}"}) {
    EXPECT_FALSE(ParseBody(wrong).ok()) << wrong.substr(0, 40);
  }
}

}  // namespace
}  // namespace hearth
