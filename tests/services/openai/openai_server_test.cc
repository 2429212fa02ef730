// Tests of OpenAI's API on a worker whose model is replaced by hashing
// (tests/support/hash_gemma.cc).
#include "services/openai/openai_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "nlohmann/json.hpp"
#include "services/openai/http_error.h"
#include "tests/services/inference/worker_server.h"
#include "tests/services/serving/http_caller.h"
#include "tests/support/test_certificates.h"

namespace hearth {
namespace {

using nlohmann::json;
using ::testing::Contains;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

struct Reply {
  int status = 0;
  std::string head, body;
  json parsed() const { return json::parse(body, nullptr, false); }
  // Returns the data of each event of a stream.
  std::vector<std::string> events() const {
    std::vector<std::string> found;
    for (const absl::string_view line : absl::StrSplit(body, '\n')) {
      if (absl::StartsWith(line, "data: ")) found.emplace_back(line.substr(6));
    }
    return found;
  }
};

class OpenAiServerTest : public ::testing::Test {
 protected:
  OpenAiServerTest() {
    Serve(WorkerServer::Invariant());
    options_.http.listen = "127.0.0.1:0";
    options_.model = "tiny";
    options_.model_note = "a base model";
    options_.version = "test";
  }
  void Serve(const WorkerServer::Options& options) {
    server_ = std::make_unique<WorkerServer>(options);
    options_.generator = server_->generator();
    options_.admission = server_->admission();
  }
  std::string WriteIdentity(const std::string& token) {
    return folder_.Write(
        "identities.json",
        absl::StrCat(R"({"identities":[{"name":"a","role":"tenant","token_sha256":")",
                     DigestHex(Sha256(token)), "\"}]}"));
  }
  // Starts a server that accepts only callers with the token "right".
  void ServeWithToken(WorkerServer::Options options = WorkerServer::Invariant()) {
    Identities::Options identities;
    identities.file = WriteIdentity("right");
    identities_ = Identities::Open(identities).value();
    options.identities = identities_.get();
    Serve(options);
  }
  // Returns options for a worker that runs one request at a time. LongRequest's answer takes longer
  // than any test.
  static WorkerServer::Options ForOneLongRequest() {
    WorkerServer::Options options = WorkerServer::Invariant();
    options.engine.max_running = 1;
    options.engine.max_queued = 0;
    options.geometry.context_tokens = 200000;
    return options;
  }
  void ServeOneLongRequest() {
    Serve(ForOneLongRequest());
    Open();
  }
  static std::string LongRequest(bool streams) {
    const std::string body = absl::StrCat(
        R"({"prompt": "the keeper", "max_tokens": 150000, "ignore_eos": true, "stream": )",
        streams ? "true}" : "false}");
    return absl::StrCat("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n",
                        "X-Api-Key: right\r\nContent-Type: application/json\r\n",
                        "Content-Length: ", body.size(), "\r\n\r\n", body);
  }
  // Checks that the caller's stream ends with an error, and that the worker's call ends.
  void ExpectStreamFails(HttpCaller* caller, const std::string& why) {
    const std::string rest = caller->HearUntil("data: [DONE]");
    EXPECT_THAT(rest, HasSubstr(R"(data: {"error":)"));
    EXPECT_THAT(rest, HasSubstr(why));
    EXPECT_TRUE(server_->admission()->WaitIdle(absl::Now() + absl::Minutes(2)));
  }
  void Open() {
    auto openai = OpenAiServer::Open(options_);
    ASSERT_TRUE(openai.ok()) << openai.status();
    openai_ = *std::move(openai);
  }
  Reply Ask(const std::string& line, const std::string& headers, const std::string& body = "") {
    if (openai_ == nullptr) Open();
    HttpCaller caller(openai_->address());
    caller.Say(absl::StrCat(line, " HTTP/1.0\r\n", headers, "Content-Length: ", body.size(),
                            "\r\n\r\n", body));
    const std::string all = caller.HearAll();
    const size_t head = all.find("\r\n\r\n");
    if (head == all.npos) return {};
    return {std::stoi(all.substr(9)), all.substr(0, head), all.substr(head + 4)};
  }
  Reply Post(const std::string& path, const std::string& body) {
    return Ask("POST " + path, "Host: localhost\r\nContent-Type: application/json\r\n", body);
  }
  Reply Get(const std::string& path) { return Ask("GET " + path, "Host: localhost\r\n"); }

  SecretFolder folder_;
  // declared before server_, because it must outlive server_
  std::unique_ptr<Identities> identities_;
  // declared before the engine, because it must outlive the engine
  std::unique_ptr<MemoryPrefixCache> cache_;
  std::unique_ptr<WorkerServer> server_;
  OpenAiOptions options_;
  std::unique_ptr<OpenAiServer> openai_;
};

const char kChatBody[] = R"({"model": "tiny", "temperature": 0, "max_tokens": 6,
    "messages": [{"role": "user", "content": "the keeper of the lamp"}])";

TEST_F(OpenAiServerTest, UnknownChatTemplateRefusesOnlyChats) {
  WorkerServer::Options options = WorkerServer::Invariant();
  options.why_no_chats = "DIR/chat_template.jinja is not Gemma's; start with --chat-template gemma";
  Serve(options);
  const Reply refused = Post("/v1/chat/completions", std::string(kChatBody) + "}");
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, HasSubstr("messages: " + options.why_no_chats));
  const Reply text = Post("/v1/completions", R"({"prompt": "the keeper", "max_tokens": 2})");
  EXPECT_EQ(text.status, 200) << text.body;
}

TEST_F(OpenAiServerTest, ChatAnswerEqualsGrpcGenerate) {
  const Reply reply = Post("/v1/chat/completions", std::string(kChatBody) + "}");
  ASSERT_EQ(reply.status, 200) << reply.body;
  v1::GenerateRequest request;
  v1::ChatMessage* message = request.mutable_prompt()->mutable_chat()->add_messages();
  message->set_role("user");
  message->add_parts()->set_text("the keeper of the lamp");
  request.set_max_new_tokens(6);
  const Generation same = server_->Generate(request);
  const json made = reply.parsed();
  EXPECT_EQ(made["object"], "chat.completion");
  EXPECT_EQ(made["choices"][0]["message"]["content"], same.text);
  EXPECT_EQ(made["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(made["usage"]["prompt_tokens"], same.started.prompt_tokens());
  EXPECT_EQ(made["usage"]["completion_tokens"], same.finished.generated_tokens());
  EXPECT_THAT(reply.head, HasSubstr("X-Request-Id: "));
}

TEST_F(OpenAiServerTest, AnyRoleOrderReusesEarlierTurn) {
  json chat = {{"temperature", 0}, {"max_tokens", 6}, {"messages", json::array()}};
  const auto add = [&](const char* role, const json& content) {
    chat["messages"].push_back({{"role", role}, {"content", content}});
  };
  const auto ask = [&] {
    const Reply reply = Post("/v1/chat/completions", chat.dump());
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.parsed();
  };
  add("assistant", "climb the stairs");
  add("system", "the keeper of the light");
  add("user", "trims the lamp");
  add("user", "before evening comes");
  const json first = ask();
  add("assistant", first["choices"][0]["message"]["content"]);
  add("assistant", nullptr);
  add("developer", "wind and sea");
  const json usage = ask()["usage"];
  EXPECT_GE(usage["prompt_tokens_details"]["cached_tokens"], first["usage"]["prompt_tokens"]);
  const json tokens = Post("/tokenize", json{{"messages", chat["messages"]}}.dump()).parsed();
  EXPECT_EQ(tokens["count"], usage["prompt_tokens"]);
}

TEST_F(OpenAiServerTest, StreamedTextEqualsWholeText) {
  const Reply whole = Post("/v1/chat/completions", std::string(kChatBody) + "}");
  const Reply stream = Post(
      "/v1/chat/completions",
      std::string(kChatBody) + R"(, "stream": true, "stream_options": {"include_usage": true}})");
  ASSERT_EQ(stream.status, 200) << stream.body;
  const std::vector<std::string> events = stream.events();
  ASSERT_GE(events.size(), 4u);
  EXPECT_EQ(events.back(), "[DONE]");
  std::string text, end;
  json usage;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const json event = json::parse(events[i]);
    if (!event["usage"].is_null()) usage = event["usage"];
    for (const json& choice : event["choices"]) {
      text += choice["delta"].value("content", "");
      if (choice["finish_reason"].is_string()) end = choice["finish_reason"];
    }
  }
  const json same = whole.parsed();
  EXPECT_EQ(text, same["choices"][0]["message"]["content"]);
  EXPECT_EQ(end, same["choices"][0]["finish_reason"]);
  EXPECT_EQ(usage["completion_tokens"], same["usage"]["completion_tokens"]);
  EXPECT_GT(usage["prompt_tokens_details"]["cached_tokens"], 0);
}

TEST_F(OpenAiServerTest, SeveralPromptsHaveLogprobs) {
  const Reply reply = Post("/v1/completions",
                           R"({"prompt": ["the keeper", "a lamp"], "n": 2, "max_tokens": 3,
                               "temperature": 0, "logprobs": 2, "ignore_eos": true})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const json made = reply.parsed();
  ASSERT_EQ(made["choices"].size(), 4u);
  EXPECT_EQ(made["choices"][0]["text"], made["choices"][1]["text"]);
  for (const json& choice : made["choices"]) {
    EXPECT_EQ(choice["logprobs"]["tokens"].size(), 3u);
    EXPECT_EQ(choice["logprobs"]["token_logprobs"].size(), 3u);
    EXPECT_EQ(choice["finish_reason"], "length");
  }
  EXPECT_EQ(made["usage"]["completion_tokens"], 12);
}

TEST_F(OpenAiServerTest, ByteTokensHaveDistinctLogprobKeys) {
  const auto flat_of = [&](const char* piece) {
    const int32_t id = options_.generator->options().tokenizer->FindPiece(piece).value();
    const json body = {{"prompt", "the keeper"}, {"max_tokens", 8},
                       {"ignore_eos", true},     {"temperature", 0},
                       {"logprobs", 20},         {"logit_bias", {{std::to_string(id), 100}}}};
    return Post("/v1/completions", body.dump()).parsed()["choices"][0]["logprobs"];
  };
  // The first token is a byte that is not valid UTF-8 alone; the second is a byte token whose text
  // equals another token's text.
  for (const auto& [piece, name] : {std::pair("<0xE2>", "bytes:\\xe2"),
                                    std::pair("<0x61>", "bytes:\\x61"), std::pair("a", "a")}) {
    const json flat = flat_of(piece);
    size_t bytes = 0;
    for (size_t i = 0; i < 8; ++i) {
      EXPECT_EQ(flat["tokens"][i], name);
      EXPECT_EQ(flat["top_logprobs"][i].size(), 20u) << flat["top_logprobs"][i];
      for (const auto& [key, logprob] : flat["top_logprobs"][i].items()) {
        bytes += absl::StartsWith(key, "bytes:\\x");
      }
    }
    EXPECT_GT(bytes, 8u);
  }
}

TEST_F(OpenAiServerTest, EchoedLogprobsBypassCache) {
  const std::string body = R"({"prompt": "the keeper of the lamp", "max_tokens": 1, "echo": true,
                               "temperature": 0, "logprobs": 1, "ignore_eos": true)";
  for (int round = 0; round < 2; ++round) {
    const json made = Post("/v1/completions", body + "}").parsed();
    const json& flat = made["choices"][0]["logprobs"];
    const size_t prompt = made["usage"]["prompt_tokens"];
    EXPECT_EQ(made["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    ASSERT_EQ(flat["token_logprobs"].size(), prompt + 1);
    ASSERT_EQ(flat["tokens"].size(), prompt + 1);
    ASSERT_EQ(flat["text_offset"].size(), prompt + 1);
    EXPECT_TRUE(flat["token_logprobs"][0].is_null() && flat["top_logprobs"][0].is_null());
    for (size_t i = 1; i <= prompt; ++i) {
      EXPECT_LE(flat["token_logprobs"][i], 0);
      EXPECT_EQ(flat["top_logprobs"][i].size(), 1u);
    }
    // Remove the last token of the prompt: that token is then generated, and must have the same log
    // probability as in the echo.
    const json all =
        Post("/tokenize", R"({"prompt": "the keeper of the lamp"})").parsed()["tokens"];
    json ids = all;
    ids.erase(ids.size() - 1);
    json one = {
        {"prompt", ids},      {"max_tokens", 1},
        {"temperature", 0},   {"logprobs", 1},
        {"ignore_eos", true}, {"logit_bias", {{std::to_string(all.back().get<int>()), 100}}}};
    const json next = Post("/v1/completions", one.dump()).parsed();
    EXPECT_EQ(next["choices"][0]["logprobs"]["token_logprobs"][0],
              flat["token_logprobs"][prompt - 1]);
  }
  const Reply stream = Post("/v1/completions", body + R"(, "stream": true})");
  size_t told = 0;
  for (const std::string& event : stream.events()) {
    const json parsed = json::parse(event, nullptr, false);
    if (!parsed.is_object() || parsed["choices"].empty()) continue;
    const json& logprobs = parsed["choices"][0]["logprobs"];
    if (logprobs.is_object()) told += logprobs["tokens"].size();
  }
  EXPECT_EQ(
      told,
      Post("/v1/completions", body + "}").parsed()["choices"][0]["logprobs"]["tokens"].size());
}

// lm-eval scores texts with such requests.
TEST_F(OpenAiServerTest, EchoWithZeroMaxTokensReturnsPrompt) {
  const std::string begin = R"({"prompt": ["the keeper of", "a lamp"], "echo": true,
                                "temperature": 0, "logprobs": 1, "max_tokens": )";
  const json more = Post("/v1/completions", begin + "1}").parsed();
  const json made = Post("/v1/completions", begin + "0}").parsed();
  ASSERT_EQ(made["choices"].size(), 2u) << made;
  EXPECT_EQ(made["choices"][0]["text"], "the keeper of");
  EXPECT_EQ(made["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(made["usage"]["completion_tokens"], 0);
  EXPECT_EQ(made["usage"]["prompt_tokens"], more["usage"]["prompt_tokens"]);
  for (size_t i = 0; i < 2; ++i) {
    json of_more = more["choices"][i]["logprobs"]["token_logprobs"];
    of_more.erase(of_more.size() - 1);
    EXPECT_EQ(made["choices"][i]["logprobs"]["token_logprobs"], of_more);
  }
  const Reply stream = Post("/v1/completions", begin + R"(0, "stream": true})");
  std::string text;
  size_t tokens = 0;
  for (const std::string& event : stream.events()) {
    const json parsed = json::parse(event, nullptr, false);
    if (!parsed.is_object() || parsed["choices"].empty()) continue;
    const json& choice = parsed["choices"][0];
    if (choice["index"] == 0) text += choice["text"];
    if (choice["logprobs"].is_object()) tokens += choice["logprobs"]["tokens"].size();
  }
  EXPECT_EQ(text, "the keeper of");
  EXPECT_EQ(tokens, made["usage"]["prompt_tokens"]);
  EXPECT_EQ(Post("/v1/completions", R"({"prompt": "a", "max_tokens": 0})").status, 400);
}

TEST_F(OpenAiServerTest, BadWordsAreNeverSampled) {
  const std::string begin =
      R"({"prompt": "the keeper", "max_tokens": 8, "temperature": 0, "ignore_eos": true)";
  const auto ids_of = [&](const std::string& text) {
    return Post("/tokenize", json{{"prompt", text}, {"add_special_tokens", false}}.dump())
        .parsed()["tokens"];
  };
  json biases = json::object();
  for (const char* word : {"and", " and"}) {
    const json ids = ids_of(word);
    if (ids.size() == 1) biases[ids[0].dump()] = 100;
  }
  ASSERT_EQ(ids_of("and").size(), 1u);
  const auto text = [&](const std::string& more) {
    return Post("/v1/completions",
                absl::StrCat(begin, ", \"logit_bias\": ", biases.dump(), more, "}"))
        .parsed()["choices"][0]["text"]
        .get<std::string>();
  };
  EXPECT_THAT(text(""), HasSubstr("and"));
  EXPECT_THAT(text(R"(, "bad_words": [" and"])"), Not(HasSubstr("and")));
  const Reply many = Post("/v1/completions", begin + R"(, "bad_words": ["the lamp"]})");
  EXPECT_EQ(many.status, 400);
  EXPECT_THAT(many.body, HasSubstr("bad_words: must be words of one token; "));
  for (const char* blank : {"\n", " "}) {
    ASSERT_EQ(ids_of(blank).size(), 1u);
    const json body = {
        {"prompt", "a"}, {"max_tokens", 1}, {"bad_words", {blank}}, {"temperature", 0}};
    json forced = body;
    forced["logit_bias"] = {{ids_of(blank)[0].dump(), 100}};
    EXPECT_NE(Post("/v1/completions", forced.dump()).parsed()["choices"][0]["text"], blank);
    forced.erase("bad_words");
    EXPECT_EQ(Post("/v1/completions", forced.dump()).parsed()["choices"][0]["text"], blank);
    EXPECT_EQ(Post("/v1/completions", body.dump()).status, 200) << body;
  }
}

TEST_F(OpenAiServerTest, TextWithoutBosEqualsItsTokenIds) {
  const std::string more = R"(, "max_tokens": 6, "temperature": 0, "ignore_eos": true})";
  const json made =
      Post("/v1/completions", R"({"prompt": "the keeper", "add_special_tokens": false)" + more)
          .parsed();
  const json ids =
      Post("/tokenize", R"({"prompt": "the keeper", "add_special_tokens": false})").parsed();
  const json all = Post("/tokenize", R"({"prompt": "the keeper"})").parsed();
  EXPECT_EQ(ids["count"].get<int>() + 1, all["count"].get<int>());
  EXPECT_EQ(made["usage"]["prompt_tokens"], ids["count"]);
  const json same =
      Post("/v1/completions", R"({"prompt": )" + ids["tokens"].dump() + more).parsed();
  EXPECT_EQ(made["choices"][0]["text"], same["choices"][0]["text"]);
  EXPECT_EQ(Post("/tokenize", R"({"prompt": "<bos>the", "add_special_tokens": false})")
                .parsed()["tokens"],
            Post("/tokenize", R"({"prompt": "the"})").parsed()["tokens"]);
}

TEST_F(OpenAiServerTest, ContinuedAnswerOmitsEndOfTurn) {
  const auto tokens = [&](const std::string& more) {
    return Post("/tokenize",
                R"({"messages": [{"role": "user", "content": "the keeper"},
                    {"role": "assistant", "content": " of the lamp "}])" +
                    more + "}")
        .parsed()["tokens"];
  };
  const json closed = tokens(R"(, "add_generation_prompt": false)");
  json open = tokens(R"(, "continue_final_message": true)");
  ASSERT_LT(open.size(), closed.size());
  const json end =
      Post("/tokenize", R"({"prompt": "<end_of_turn>\n", "add_special_tokens": false})")
          .parsed()["tokens"];
  open.insert(open.end(), end.begin(), end.end());
  EXPECT_EQ(open, closed);
}

TEST_F(OpenAiServerTest, ReturnedSeedReproducesText) {
  const std::string open = R"({"prompt": "the keeper", "max_tokens": 12, "ignore_eos": true)";
  const json drawn = Post("/v1/completions", open + "}").parsed();
  ASSERT_TRUE(drawn["seed"].is_number()) << drawn;
  const json again =
      Post("/v1/completions", open + ", \"seed\": " + drawn["seed"].dump() + "}").parsed();
  EXPECT_EQ(again["choices"][0]["text"], drawn["choices"][0]["text"]);
  EXPECT_FALSE(Post("/v1/completions", open + R"(, "temperature": 0})").parsed().contains("seed"));
}

TEST(DefaultSampling, PairsParsedAndBadPairNamed) {
  const auto said = ParseDefaultSampling("temperature=0.5, top_k=7");
  ASSERT_TRUE(said.ok()) << said.status();
  EXPECT_EQ(said->temperature, 0.5F);
  EXPECT_EQ(said->top_k, 7u);
  EXPECT_FALSE(said->top_p.has_value());
  EXPECT_FALSE(ParseDefaultSampling("")->temperature.has_value());
  const auto refusal = [](const char* text) {
    return std::string(ParseDefaultSampling(text).status().message());
  };
  EXPECT_THAT(refusal("heat=1"), StartsWith("\"heat=1\" must be temperature=NUMBER"));
  EXPECT_THAT(refusal("top_k=a"), StartsWith("\"top_k=a\" must be"));
  EXPECT_THAT(refusal("top_p=2"), StartsWith("sampling.top_p: is 2"));
}

TEST_F(OpenAiServerTest, UsageReportsCacheWriteTokens) {
  cache_ = std::make_unique<MemoryPrefixCache>(server_->engine()->layout());
  server_->SetCache(cache_.get());
  const std::string body =
      R"({"prompt": "the keeper of the light climbs the stairs and 12 barrels, 340 nails",
      "max_tokens": 1, "temperature": 0})";
  const auto usage = [&] { return Post("/v1/completions", body).parsed()["usage"]; };
  const json cold = usage();
  const json& written = cold["prompt_tokens_details"]["cache_write_tokens"];
  EXPECT_GT(written, 0) << cold;
  EXPECT_LE(written, cold["prompt_tokens"]);
  cache_->WaitForPublishes(2);  // the prompt, and the prompt with the answer
  EXPECT_EQ(server_->engine()->Stats().counters.at("cache_write_tokens"), written);
  EXPECT_EQ(usage()["prompt_tokens_details"]["cache_write_tokens"], 0);
  const json warmed =
      Post("/v1/chat/completions",
           R"({"messages": [{"role": "system", "content": "the keeper of the light)"
           R"( climbs the stairs and 12 barrels"}, {"role": "user", "content": "a"}],)"
           R"( "prompt_cache_options": {"prewarm": true, "keep": 60, "priority": 2}})")
          .parsed()["usage"];
  EXPECT_GT(warmed["prompt_tokens_details"]["cache_write_tokens"], 0) << warmed;
  // This publish may not be the last: the answer to the second request may be published later.
  const auto is_warmed = [](const PublishRequestSpec& spec) {
    return spec.hint.keep_s == 60 && spec.hint.priority == 2;
  };
  EXPECT_THAT(cache_->published(), Contains(testing::Truly(is_warmed)));
}

// The worker restores the prompt from its own memory, and offers all of it to a store that lost it.
TEST_F(OpenAiServerTest, RestoredTokensAreNotWrittenTokens) {
  cache_ = std::make_unique<MemoryPrefixCache>(server_->engine()->layout());
  server_->SetCache(cache_.get());
  const std::string text =
      R"("the keeper of the light climbs the stairs and 12 barrels, 340 nails")";
  Post("/v1/completions", absl::StrCat(R"({"max_tokens": 1, "prompt": )", text, "}"));
  cache_->WaitForPublishes(2);  // the prompt, and the prompt with the answer
  cache_->Clear();
  const json usage =
      Post("/v1/completions", absl::StrCat(R"({"max_tokens": 1, "prompt": )", text, "}"))
          .parsed()["usage"];
  const json& details = usage["prompt_tokens_details"];
  EXPECT_GT(server_->engine()->Stats().counters.at("cache_write_tokens"), usage["prompt_tokens"]);
  EXPECT_GT(details["cached_tokens"], 0) << usage;
  EXPECT_EQ(details["cached_tokens"].get<int>() + details["cache_write_tokens"].get<int>(),
            usage["prompt_tokens"].get<int>());
}

// The prefix with the answer is published concurrently with the prompt, and may store the chunks of
// the prompt first.
TEST_F(OpenAiServerTest, CacheWriteTokensIgnorePublishOrder) {
  class AnswerFirst final : public MemoryPrefixCache {
   public:
    using MemoryPrefixCache::MemoryPrefixCache;
    PublishOutcome Publish(const PublishRequestSpec& spec, absl::Duration timeout) override {
      const bool is_prompt = spec.boundaries.size() > 1 || spec.boundaries[0] % 16 == 0;
      if (is_prompt) answer_.WaitForNotification();
      PublishOutcome outcome = MemoryPrefixCache::Publish(spec, timeout);
      if (!is_prompt) answer_.Notify();
      return outcome;
    }

   private:
    absl::Notification answer_;
  };
  cache_ = std::make_unique<AnswerFirst>(server_->engine()->layout());
  server_->SetCache(cache_.get());
  const json usage = Post("/v1/completions", R"({"prompt": "the keeper of the light climbs the )"
                                             R"(stairs and 12 barrels, 340 nails",)"
                                             R"("max_tokens": 1})")
                         .parsed()["usage"];
  EXPECT_EQ(usage["prompt_tokens_details"]["cache_write_tokens"], usage["prompt_tokens"]) << usage;
}

TEST_F(OpenAiServerTest, SlowPublishReportsZeroWriteTokens) {
  WorkerServer::Options hasty = WorkerServer::Invariant();
  hasty.plan_wait = absl::Milliseconds(1);
  Serve(hasty);
  cache_ = std::make_unique<MemoryPrefixCache>(server_->engine()->layout());
  const auto answered = std::make_shared<absl::Notification>();
  cache_->before_publish = [answered] { answered->WaitForNotification(); };
  server_->SetCache(cache_.get());
  const json usage = Post("/v1/completions", R"({"prompt": "the keeper of the light climbs the )"
                                             R"(stairs and 12 barrels", "max_tokens": 1})")
                         .parsed()["usage"];
  answered->Notify();
  EXPECT_EQ(usage["prompt_tokens_details"]["cache_write_tokens"], 0) << usage;
  EXPECT_EQ(server_->engine()->Stats().counters.at("cache_write_tokens"), 0u);
}

TEST_F(OpenAiServerTest, PrewarmGeneratesNoTokens) {
  const Reply reply =
      Post("/v1/chat/completions",
           std::string(kChatBody) + R"(, "prompt_cache_options": {"prewarm": true}})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.parsed()["usage"]["completion_tokens"], 0);
  EXPECT_GT(reply.parsed()["usage"]["prompt_tokens"], 0);
}

TEST_F(OpenAiServerTest, ErrorsNameParamAndCode) {
  const auto chat = [](const std::string& message) {
    return absl::StrCat(R"({"messages": [{"role": "user", "content": "a"}, )", message, "]}");
  };
  std::string longer = "the lamp";
  for (int i = 0; i < 8; ++i) longer += " " + longer;
  const std::string context = "This model's maximum context length is 512 tokens, the prompt has ";
  const struct {
    const char* path;
    std::string body;
    int status;
    json param, code;
    std::string message;
  } cases[] = {
      {"/v1/completions", json{{"prompt", longer}}.dump(), 400, "prompt", "context_length_exceeded",
       "prompt: " + context + "514"},
      {"/v1/chat/completions", chat(json{{"role", "user"}, {"content", longer}}.dump()), 400,
       "messages", "context_length_exceeded", "messages: " + context},
      {"/v1/completions", json{{"prompt", {std::vector<int>(513, 10)}}}.dump(), 400, "prompt[0]",
       "context_length_exceeded", "prompt[0]: " + context + "513"},
      {"/v1/completions", json{{"prompt", std::vector<int>(512, 10)}}.dump(), 400, "max_tokens",
       "context_length_exceeded",
       "max_tokens: " + context + "512, which leaves no token to generate: the prompt is too long"},
      {"/v1/completions",
       json{{"prompt", std::vector<int>(512, 10)}, {"echo", true}, {"max_tokens", 0}}.dump(), 400,
       "prompt", "context_length_exceeded", "prompt: fills the model's context"},
      {"/tokenize", json{{"prompt", longer}}.dump(), 400, "prompt", "context_length_exceeded",
       "prompt: " + context},
      {"/v1/completions", R"({"prompt": "a", "model": "other"})", 404, "model", "model_not_found",
       "model: there is no \"other\" here"},
      {"/v1/completions", R"({"prompt": "a", "suffix": "b"})", 400, "suffix",
       "unsupported_parameter", "suffix: is not supported"},
      {"/v1/completions", R"({"prompt": "a", "response_format": {"type": "xml"}})", 400,
       "response_format.type", "unsupported_parameter", "response_format.type: must be"},
      {"/v1/chat/completions",
       chat(R"({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]})"),
       400, "messages[1].content[0].image_url", "unsupported_parameter", "messages[1].content[0]"},
      {"/v1/chat/completions", chat(R"({"role": "function", "content": "b"})"), 400,
       "messages[1].role", nullptr, "messages[1].role: must be"},
      {"/v1/chat/completions",
       chat(json{{"role", "user"}, {"content", std::string((2 << 20) + 1, 'a')}}.dump()), 400,
       "messages[1].content", nullptr, "messages[1].content: has 2097153 bytes"},
      {"/v1/completions", R"({"prompt": "a", "temperature": 3})", 400, "temperature", nullptr,
       "temperature: must be"},
      {"/v1/completions", R"({"prompt": [999999]})", 400, "prompt", nullptr, "prompt: token_ids"},
      {"/v1/completions", R"({"prompt": "a", })", 400, nullptr, nullptr,
       "the body: must be JSON; at byte 17: "},
  };
  for (const auto& wrong : cases) {
    const Reply reply = Post(wrong.path, wrong.body);
    EXPECT_EQ(reply.status, wrong.status) << reply.body;
    const json error = reply.parsed()["error"];
    EXPECT_THAT(error["message"].get<std::string>(), StartsWith(wrong.message));
    EXPECT_EQ(error["type"], "invalid_request_error");
    EXPECT_EQ(error["param"], wrong.param) << error;
    EXPECT_EQ(error["code"], wrong.code) << error;
  }
}

// Errors of the engine have gRPC names; clients must see the name that they sent.
TEST_F(OpenAiServerTest, EngineErrorsNameSentField) {
  WorkerServer::Options worker = WorkerServer::Invariant();
  worker.engine.max_running = 2;
  Serve(worker);
  const std::string full = json(std::vector<int>(512, 10)).dump(), text = R"("a")";
  const std::string id = Post("/tokenize", R"({"prompt": "7", "add_special_tokens": false})")
                             .parsed()["tokens"][0]
                             .dump();
  const std::string seven = R"("guided_json": {"const": 7}, )";
  const struct {
    std::string prompt, fields, param;
  } cases[] = {
      {full, R"("max_completion_tokens": 4)", "max_completion_tokens"},
      {full, R"("n_predict": 4)", "n_predict"},
      {full, R"("max_tokens": 4, "n_predict": 4)", "max_tokens"},
      {full, R"("max_tokens": 4, "max_completion_tokens": 4)", "max_completion_tokens"},
      {full, R"("seed": 1)", "max_tokens"},
      {text, R"("n": 3)", "n"},
      {text, R"("n_cmpl": 3)", "n_cmpl"},
      {text, seven + R"("bad_words": ["7"])", "bad_words"},
      {text, absl::StrCat(seven, "\"bad_token_ids\": [", id, "]"), "bad_token_ids"},
      {text, absl::StrCat(seven, "\"logit_bias\": [[", id, ", false]]"), "logit_bias"},
      {text, R"("logit_bias": [[1000000000, false]])", "logit_bias"},
  };
  for (const auto& [prompt, fields, param] : cases) {
    const auto body = [&](const char* streams) {
      return absl::StrCat("{\"prompt\": ", prompt, ", \"stream\": ", streams, ", ", fields, "}");
    };
    const Reply whole = Post("/v1/completions", body("false"));
    EXPECT_EQ(whole.status, 400) << whole.body;
    const json error = whole.parsed()["error"];
    EXPECT_EQ(error["param"], param) << fields << error;
    EXPECT_THAT(error["message"].get<std::string>(), StartsWith(param + ": "));
    const Reply stream = Post("/v1/completions", body("true"));
    EXPECT_THAT(stream.body, HasSubstr(absl::StrCat("\"param\":\"", param, "\"")));
  }
}

TEST_F(OpenAiServerTest, EchoedLogprobsNeedInvariant) {
  Serve({});
  const Reply reply = Post("/v1/completions", R"({"prompt": "a", "echo": true, "logprobs": 1})");
  EXPECT_EQ(reply.status, 400);
  const json error = reply.parsed()["error"];
  EXPECT_EQ(error["param"], "echo");
  EXPECT_EQ(error["message"], "echo: needs exactness invariant; this worker uses exact");
}

TEST_F(OpenAiServerTest, WrongKeyReturnsInvalidApiKey) {
  ServeWithToken();
  for (const char* token : {"X-Api-Key: wrong\r\n", "Authorization: Bearer wrong\r\n", ""}) {
    const Reply reply = Ask("GET /v1/models", absl::StrCat("Host: localhost\r\n", token));
    EXPECT_EQ(reply.status, 401);
    EXPECT_EQ(reply.parsed()["error"]["code"], "invalid_api_key") << reply.body;
  }
}

TEST_F(OpenAiServerTest, WrongPathPrefixErrorNamesBaseUrl) {
  for (const char* path : {"/chat/completions", "/completions", "/embeddings", "/models",
                           "/models/tiny", "/v1/v1/chat/completions", "/v1/v1/models"}) {
    for (const Reply& reply : {Get(path), Post(path, "{}")}) {
      EXPECT_EQ(reply.status, 404) << path;
      EXPECT_THAT(reply.body, HasSubstr("the client's base URL must be http://HOST:PORT/v1"))
          << path;
    }
  }
  EXPECT_THAT(Get("/v1/nothing").body, Not(HasSubstr("base URL")));
}

TEST_F(OpenAiServerTest, EmbeddingsAreNotFound) {
  for (const Reply& reply : {Get("/v1/embeddings"), Post("/v1/embeddings", R"({"input": "a"})")}) {
    EXPECT_EQ(reply.status, 404) << "clients retry every 5xx";
    EXPECT_EQ(reply.parsed()["error"]["message"],
              "/v1/embeddings: Gemma 3 generates text; it has no embeddings");
  }
}

TEST_F(OpenAiServerTest, StoredAnswersAreNotFound) {
  const std::string headers = "Host: localhost\r\nContent-Type: application/json\r\n";
  for (const char* line :
       {"GET /v1/responses/resp_1", "DELETE /v1/responses/resp_1",
        "GET /v1/responses/resp_1/input_items", "POST /v1/responses/resp_1/cancel",
        "GET /v1/chat/completions/chatcmpl-1", "POST /v1/messages/batches"}) {
    const Reply reply = Ask(line, headers);
    EXPECT_EQ(reply.status, 404) << line;
    EXPECT_THAT(reply.parsed()["error"]["message"].get<std::string>(),
                HasSubstr("the server is stateless and stores no answers"));
  }
}

TEST_F(OpenAiServerTest, EscapedModelNameIsDecoded) {
  options_.model = "google/gemma 3%";
  for (const char* path : {"google%2Fgemma%203%25", "google/gemma%203%", "google%2fgemma%203%25"}) {
    EXPECT_EQ(Get(absl::StrCat("/v1/models/", path)).parsed()["id"], options_.model) << path;
  }
  const Reply other = Get("/v1/models/google%2Fother");
  EXPECT_EQ(other.status, 404);
  EXPECT_EQ(other.parsed()["error"]["code"], "model_not_found") << other.body;
  EXPECT_EQ(other.parsed()["error"]["param"], "model");
  EXPECT_THAT(other.body, HasSubstr("google/other"));
}

TEST_F(OpenAiServerTest, WrongPathMethodAndTypeRefused) {
  EXPECT_EQ(Post("/v1/nothing", "{}").status, 404);
  EXPECT_EQ(Get("/v1/chat/completions").status, 405);
  EXPECT_EQ(
      Ask("POST /v1/completions", "Host: localhost\r\nContent-Type: text/plain\r\n", "{}").status,
      415);
}

TEST_F(OpenAiServerTest, QueuedStreamGetsHeadersWhileWaiting) {
  WorkerServer::Options options = ForOneLongRequest();
  options.engine.max_queued = 1;
  Serve(options);
  Open();
  HttpCaller running(openai_->address()), queued(openai_->address()), refused(openai_->address());
  running.Say(LongRequest(/*streams=*/true));
  EXPECT_THAT(running.HearUntil("data: "), StartsWith("HTTP/1.1 200"));
  queued.Say(LongRequest(/*streams=*/true));
  const std::string head = queued.HearUntil(": waiting\n\n");
  EXPECT_THAT(head, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(head, HasSubstr("Content-Type: text/event-stream"));
  EXPECT_THAT(head, Not(HasSubstr("data: ")));
  refused.Say(LongRequest(/*streams=*/true));
  EXPECT_THAT(refused.HearUntil("\r\n\r\n"), StartsWith("HTTP/1.1 429"));
  server_->admission()->Close();
  server_->admission()->CutOff();
  ExpectStreamFails(&queued, "the server is shutting down");
}

TEST_F(OpenAiServerTest, FullQueueSendsRetryAfter) {
  ServeOneLongRequest();
  HttpCaller first(openai_->address());
  first.Say(LongRequest(/*streams=*/true));
  EXPECT_THAT(first.HearUntil("data: "), StartsWith("HTTP/1.1 200"));
  const Reply reply = Post("/v1/completions", R"({"prompt": "a"})");
  EXPECT_EQ(reply.status, 429) << reply.body;
  EXPECT_THAT(reply.head, HasSubstr("\r\nRetry-After-Ms: 1000\r\n"));
  EXPECT_THAT(reply.head, HasSubstr("\r\nRetry-After: 1\r\n"));
  EXPECT_EQ(reply.parsed()["error"]["code"], "rate_limit_exceeded") << reply.body;
  EXPECT_EQ(reply.parsed()["error"]["type"], "rate_limit_error") << reply.body;
  EXPECT_TRUE(reply.parsed()["error"]["param"].is_null()) << reply.body;
}

TEST_F(OpenAiServerTest, DrainRefusesNewRequest) {
  server_->admission()->Close();
  const Reply reply = Post("/v1/completions", R"({"prompt": "a"})");
  EXPECT_EQ(reply.status, 503) << reply.body;
  EXPECT_THAT(reply.head, HasSubstr("\r\nRetry-After: 1\r\n"));
}

// Drains servers that have received several bodies but not parsed all bodies.
class DrainWithBodiesTest : public OpenAiServerTest {
 protected:
  DrainWithBodiesTest() {
    while (body_.size() < (size_t{3} << 20) - 64) body_ += ",{}";
    body_ += "]}";
  }
  // Returns the answer to the last body. It is empty if the server answered before the drain.
  std::string DrainWhileParsing(const std::string& path) {
    openai_ = nullptr;
    Serve(WorkerServer::Invariant());
    Open();
    // The server parses bodies from one address one after another, so some bodies are usually not
    // parsed yet when the test reads held_bytes.
    constexpr size_t kCallers = 8;
    std::vector<std::unique_ptr<HttpCaller>> callers;
    for (size_t i = 0; i < kCallers; ++i) {
      callers.push_back(std::make_unique<HttpCaller>(openai_->address()));
      callers.back()->Say(absl::StrCat(
          "POST ", path, " HTTP/1.1\r\nHost: localhost\r\n",
          "Content-Type: application/json\r\nContent-Length: ", body_.size(), "\r\n\r\n", body_));
    }
    HttpCaller& last = *callers.back();
    while (openai_->held_bytes() < kCallers * body_.size() + (size_t{1} << 20)) {
      if (last.HasNews()) return "";
      Get("/version");
    }
    openai_->Drain();
    server_->runner()->Drain(absl::ZeroDuration(), nullptr);
    return last.HearAll();
  }

 private:
  std::string body_ = R"({"prompt": "a", "max_tokens": 1, "x": [{})";
};

// A call that begins after the server's shutdown would crash the process.
TEST_F(DrainWithBodiesTest, BodyBeingParsedIsRefused) {
  for (const char* path : {"/v1/completions", "/v1/chat/completions", "/tokenize"}) {
    std::string all;
    // On a busy machine, the last body may be parsed before the drain. Then the test tries again.
    for (int i = 0; i < 20 && !absl::StrContains(all, "the server is draining"); ++i) {
      all = DrainWhileParsing(path);
    }
    EXPECT_THAT(all, StartsWith("HTTP/1.1 503")) << path;
    EXPECT_THAT(all, HasSubstr("the server is draining")) << path;
  }
}

TEST_F(OpenAiServerTest, ClientDisconnectCancelsCall) {
  ServeOneLongRequest();
  const auto count = [&](const char* name) { return server_->engine()->Stats().counters.at(name); };
  uint64_t rounds = 0;
  for (const bool streams : {false, true}) {
    HttpCaller caller(openai_->address());
    caller.Say(LongRequest(streams));
    if (streams) {
      EXPECT_THAT(caller.HearUntil("data: "), StartsWith("HTTP/1.1 200"));
    }
    const absl::Time end = absl::Now() + absl::Minutes(2);
    while (count("requests") == rounds) ASSERT_LT(absl::Now(), end);
    caller.HangUp();
    EXPECT_TRUE(server_->admission()->WaitIdle(end));
    while (count("requests_cancelled") == rounds) ASSERT_LT(absl::Now(), end);
    ++rounds;
  }
}

TEST_F(OpenAiServerTest, FirstErrorCancelsOtherPrompts) {
  ServeOneLongRequest();
  const Reply reply = Post("/v1/completions", R"({"prompt": [[3], [999999]], "ignore_eos": true,
                                                  "max_tokens": 150000})");
  EXPECT_EQ(reply.status, 400) << reply.body;
  EXPECT_TRUE(server_->admission()->WaitIdle(absl::Now() + absl::Minutes(2)));
  server_->engine()->Drain(absl::Now() + absl::Minutes(2));
  EXPECT_EQ(server_->engine()->Stats().counters.at("requests_finished"), 0u);
}

TEST_F(OpenAiServerTest, RevokedTokenEndsItsStream) {
  ServeWithToken(ForOneLongRequest());
  Open();
  HttpCaller caller(openai_->address());
  caller.Say(LongRequest(/*streams=*/true));
  EXPECT_THAT(caller.HearUntil("data: "), StartsWith("HTTP/1.1 200"));
  WriteIdentity("another");
  ExpectStreamFails(&caller, "no valid identity");
}

TEST_F(OpenAiServerTest, ShutdownEndsStreamWithError) {
  ServeOneLongRequest();
  HttpCaller caller(openai_->address());
  caller.Say(LongRequest(/*streams=*/true));
  EXPECT_THAT(caller.HearUntil("data: "), StartsWith("HTTP/1.1 200"));
  server_->admission()->Close();
  server_->admission()->CutOff();
  ExpectStreamFails(&caller, "the server is shutting down");
}

TEST_F(OpenAiServerTest, HttpCallsRecordGrpcMethodNames) {
  absl::Mutex mutex;
  std::vector<CallRecord> records;
  WorkerServer::Options options = WorkerServer::Invariant();
  options.recorder = [&](const CallRecord& record) {
    absl::MutexLock lock(&mutex);
    records.push_back(record);
  };
  Serve(options);
  const auto post = [&](const char* path, const std::string& body) {
    const Reply reply = Ask(absl::StrCat("POST ", path),
                            "Host: localhost\r\nContent-Type: application/json\r\n"
                            "X-Request-Id: my-id\r\n",
                            body);
    EXPECT_TRUE(server_->admission()->WaitIdle(absl::InfiniteFuture()));
    return reply.status;
  };
  EXPECT_EQ(post("/v1/completions", R"({"prompt": "a", "max_tokens": 3, "ignore_eos": true})"),
            200);
  EXPECT_EQ(post("/v1/chat/completions",
                 std::string(kChatBody) + R"(, "prompt_cache_options": {"prewarm": true}})"),
            200);
  EXPECT_EQ(post("/tokenize", R"({"prompt": "a"})"), 200);
  EXPECT_EQ(post("/v1/completions", R"({"prompt": [999999]})"), 400);
  openai_ = nullptr;
  absl::MutexLock lock(&mutex);
  ASSERT_EQ(records.size(), 4u);
  const char* const methods[] = {"Generate", "Prefill", "Tokenize", "Generate"};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_STREQ(records[i].method, methods[i]);
    EXPECT_EQ(records[i].note.request_id, "my-id");
    EXPECT_EQ(records[i].note.tenant, "default");
    EXPECT_EQ(records[i].code, i == 3 ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kOk);
  }
  EXPECT_GT(records[0].note.tokens, 0u);
  EXPECT_EQ(records[0].note.generated, 3u);
  EXPECT_GT(records[1].note.tokens, 0u);
  server_ = nullptr;
}

TEST_F(OpenAiServerTest, ForeignHostOrOriginIsForbidden) {
  options_.http.hosts = {"models.example.com"};
  options_.origins = {"https://chat.example.com"};
  const auto status = [&](const std::string& headers) {
    return Ask("GET /v1/models", headers).status;
  };
  EXPECT_EQ(status("Host: 127.0.0.1:80\r\n"), 200);
  EXPECT_EQ(status("Host: [::1]:80\r\n"), 200);
  EXPECT_EQ(status("Host: models.example.com\r\n"), 200);
  EXPECT_EQ(status("Host: evil.example.com\r\n"), 403);
  EXPECT_EQ(status(""), 200) << "HTTP/1.0 has no Host";
  EXPECT_EQ(status("Origin: http://localhost\r\n"), 403);
  EXPECT_EQ(status("Host: localhost\r\nOrigin: https://evil.example.com\r\n"), 403);
  EXPECT_EQ(status("Host: localhost\r\nOrigin: http://localhost\r\n"), 200);
  EXPECT_THAT(Ask("GET /v1/models", "Host: evil.example.com\r\n").body,
              HasSubstr("is not a name of this server; add it to --http-hosts"));
}

constexpr char kListedOrigin[] = "Host: localhost\r\nOrigin: https://chat.example.com\r\n";

// The headers that Chromium sends in a preflight request for a chat of OpenAI's JavaScript client.
TEST_F(OpenAiServerTest, PreflightAllowsClientHeaders) {
  options_.origins = {"https://chat.example.com"};
  const std::string asked =
      "authorization,content-type,x-stainless-arch,x-stainless-lang,x-stainless-os,"
      "x-stainless-package-version,x-stainless-retry-count,x-stainless-runtime,"
      "x-stainless-runtime-version,x-stainless-timeout";
  const auto ask = [&](const std::string& origin) {
    return Ask("OPTIONS /v1/chat/completions",
               absl::StrCat("Host: localhost\r\nOrigin: ", origin,
                            "\r\nAccess-Control-Request-Method: POST\r\n"
                            "Access-Control-Request-Headers: ",
                            asked, "\r\n"));
  };
  const Reply listed = ask("https://chat.example.com");
  EXPECT_EQ(listed.status, 204);
  EXPECT_THAT(listed.head, HasSubstr("Access-Control-Allow-Origin: https://chat.example.com\r\n"));
  EXPECT_THAT(listed.head, HasSubstr("Access-Control-Allow-Methods: GET, HEAD, POST\r\n"));
  EXPECT_THAT(listed.head, HasSubstr("Access-Control-Allow-Headers: " + asked + "\r\n"));
  EXPECT_THAT(listed.head, HasSubstr("Vary: Origin\r\n"));
  EXPECT_THAT(listed.head, Not(HasSubstr("Content-Length")));
  for (const char* other : {"https://evil.example.com", "http://chat.example.com", "null"}) {
    const Reply foreign = ask(other);
    EXPECT_EQ(foreign.status, 403) << other;
    EXPECT_THAT(foreign.head, Not(HasSubstr("Access-Control-"))) << other;
    EXPECT_THAT(foreign.head, HasSubstr("Vary: Origin")) << other;
  }
}

TEST_F(OpenAiServerTest, ListedOriginMayReadEveryAnswer) {
  options_.origins = {"https://chat.example.com"};
  options_.http.limits.body_bytes = 1 << 10;
  ServeWithToken();
  const std::string json = "Content-Type: application/json\r\nX-Api-Key: right\r\n";
  const std::string one = R"({"prompt": "a", "max_tokens": 1)";
  const auto post = [&](const std::string& headers, const std::string& body) {
    return Ask("POST /v1/completions", kListedOrigin + headers, body);
  };
  const std::vector<std::pair<int, Reply>> replies = {
      {200, post(json, one + "}")},
      {200, post(json, one + R"(, "stream": true})")},
      {200, Ask("GET /v1/models", kListedOrigin + json)},
      {400, post(json, one + R"(, "n": -1})")},
      {401, post("Content-Type: application/json\r\n", one + "}")},
      {404, Ask("GET /v1/nothing", kListedOrigin + json)},
      {405, Ask("GET /v1/completions", kListedOrigin + json)},
      {413, post(json, std::string(2 << 10, ' '))},
      {415, post("", one + "}")}};
  for (const auto& [status, reply] : replies) {
    EXPECT_EQ(reply.status, status) << reply.body;
    for (const char* header :
         {"Access-Control-Allow-Origin: https://chat.example.com\r\n", "Vary: Origin",
          "Access-Control-Expose-Headers: request-id, retry-after, retry-after-ms, "
          "x-hearth-unknown-fields, x-request-id\r\n"}) {
      EXPECT_THAT(reply.head, HasSubstr(header)) << status;
    }
  }
  options_.origins = {"*"};
  openai_ = nullptr;
  EXPECT_THAT(Ask("GET /v1/models", kListedOrigin + json).head,
              HasSubstr("Access-Control-Allow-Origin: *\r\n"));
  options_.origins.clear();
  openai_ = nullptr;
  EXPECT_THAT(Ask("GET /v1/models", "Host: localhost\r\nOrigin: http://localhost\r\n" + json).head,
              Not(HasSubstr("Access-Control-")));
}

TEST_F(OpenAiServerTest, ServerWithoutIdentitiesIgnoresTokens) {
  for (const char* token : {"not needed", "caf\xC3\xA9", "", "a\r\nAuthorization: Bearer b"}) {
    const std::string headers = absl::StrCat("Host: localhost\r\nX-Api-Key: ", token, "\r\n",
                                             "Content-Type: application/json\r\n");
    for (const char* path : {"/v1/completions", "/tokenize"}) {
      const Reply reply =
          Ask(absl::StrCat("POST ", path), headers, R"({"prompt": "a", "max_tokens": 1})");
      EXPECT_EQ(reply.status, 200) << path << token << reply.body;
    }
  }
}

TEST_F(OpenAiServerTest, ModelsNeedTokenHealthDoesNot) {
  ServeWithToken();
  EXPECT_EQ(Ask("GET /v1/models", "Host: localhost\r\nX-Api-Key: right\r\n").status, 200);
  EXPECT_EQ(Ask("GET /v1/models", "Host: localhost\r\nAuthorization: Bearer wrong\r\n").status,
            401);
  EXPECT_EQ(Ask("GET /v1/models", "Host: localhost\r\nX-Api-Key: wrong\r\n").status, 401);
  EXPECT_EQ(Ask("GET /health", "Host: localhost\r\nX-Api-Key: wrong\r\n").status, 200);
}

TEST_F(OpenAiServerTest, IllFormedTokenIs401) {
  ServeWithToken();
  for (const char* path : {"/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"}) {
    for (const char* token : {"caf\xC3\xA9", "\xFF", "a\tb", "a b", "a\x01"}) {
      for (const char* header : {"Authorization: Bearer ", "X-Api-Key: "}) {
        const Reply reply =
            Ask(absl::StrCat("POST ", path),
                absl::StrCat("Host: localhost\r\nContent-Type: application/json\r\n", header, token,
                             "\r\n"),
                R"({"prompt": "a", "tokens": [3], "max_tokens": 1})");
        // Control characters are not valid in HTTP headers, so they get status 400.
        EXPECT_TRUE(reply.status == 401 || (reply.status == 400 && token[1] < 0x20))
            << reply.status << " " << path << " " << header << reply.body;
      }
    }
  }
  EXPECT_EQ(Ask("POST /v1/completions",
                "Host: localhost\r\nContent-Type: application/json\r\nX-Api-Key: right\r\n",
                R"({"prompt": "a", "max_tokens": 1})")
                .status,
            200);
}

// Sends a request over TLS with a client certificate. Returns the status of the answer.
int StatusOverTls(const std::string& address, const std::string& certificate_file,
                  const std::string& key_file, const std::string& request) {
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_client_method()),
                                                                  SSL_CTX_free);
  EXPECT_EQ(SSL_CTX_use_certificate_chain_file(context.get(), certificate_file.c_str()), 1);
  EXPECT_EQ(SSL_CTX_use_PrivateKey_file(context.get(), key_file.c_str(), SSL_FILETYPE_PEM), 1);
  const std::unique_ptr<BIO, decltype(&BIO_free_all)> caller(BIO_new_ssl_connect(context.get()),
                                                             BIO_free_all);
  BIO_set_conn_hostname(caller.get(), address.c_str());
  EXPECT_EQ(BIO_write(caller.get(), request.data(), static_cast<int>(request.size())),
            static_cast<int>(request.size()));
  char line[sizeof("HTTP/1.1 200")] = {};
  const int wanted = sizeof(line) - 1;
  for (int read = 0, n = 0; read < wanted; read += n) {
    n = BIO_read(caller.get(), line + read, wanted - read);
    if (n <= 0) return 0;
  }
  return std::stoi(line + sizeof("HTTP/1.1"));
}

// A caller with a header for a token must send a right token there, whatever its certificate says.
TEST_F(OpenAiServerTest, EmptyTokenWithCertificateIs401) {
  TestAuthority authority;
  const TestAuthority::Pem own = authority.Issue("server"), callers = authority.Issue("team-a");
  const std::string certificate = folder_.Write("caller.pem", callers.certificate);
  const std::string key = folder_.Write("caller.key", callers.key);
  options_.http.tls = [texts = std::make_shared<const TlsTexts>(
                           TlsTexts{own.certificate, own.key, authority.certificate(), {}})] {
    return texts;
  };
  const std::string file = folder_.Write(
      "identities.json", R"({"identities":[{"name":"a","role":"tenant","certificate":"team-a"}]})");
  for (const std::string& identities_file : {std::string(), file}) {
    openai_ = nullptr;
    server_ = nullptr;
    Identities::Options identities;
    identities.file = identities_file;
    identities.certificates = true;
    identities_ = Identities::Open(identities).value();
    WorkerServer::Options options = WorkerServer::Invariant();
    options.identities = identities_.get();
    Serve(options);
    Open();
    const auto status = [&](const std::string& headers) {
      return StatusOverTls(
          openai_->address(), certificate, key,
          absl::StrCat("GET /v1/models HTTP/1.0\r\nHost: localhost\r\n", headers, "\r\n"));
    };
    EXPECT_EQ(status(""), 200);
    for (const char* headers :
         {"Authorization: \r\n", "Authorization: Bearer\r\n", "Authorization: Bearer \r\n",
          "Authorization: Basic dGVhbS1hOg==\r\n", "X-Api-Key: \r\n",
          "X-Api-Key: \r\nAuthorization: Bearer \r\n"}) {
      EXPECT_EQ(status(headers), 401) << headers << identities_file;
    }
  }
}

TEST_F(OpenAiServerTest, NonAsciiRequestIdIsReplaced) {
  const Reply reply = Ask("POST /v1/completions",
                          "Host: localhost\r\nContent-Type: application/json\r\n"
                          "X-Request-Id: caf\xC3\xA9\r\n",
                          R"({"prompt": "a", "max_tokens": 1})");
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.head.find("caf"), reply.head.npos);
}

TEST_F(OpenAiServerTest, ConflictingKeyAndTokenRefused) {
  ServeWithToken();
  const auto status = [&](const std::string& headers) {
    return Ask("GET /v1/models", "Host: localhost\r\n" + headers).status;
  };
  EXPECT_EQ(status("Authorization: Bearer right\r\nX-Api-Key: right\r\n"), 200);
  EXPECT_EQ(status("Authorization: Bearer right\r\nX-Api-Key: b\r\n"), 400);
  EXPECT_EQ(status("Authorization: Basic right\r\nX-Api-Key: right\r\n"), 400);
  EXPECT_EQ(status("Authorization: Basic right\r\n"), 401) << "no token at all";
}

// Sends only the headers: the server must answer without waiting for the body.
TEST_F(OpenAiServerTest, WrongTokenRefusedBeforeBody) {
  ServeWithToken();
  Open();
  HttpCaller caller(openai_->address());
  caller.Say(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: wrong\r\n"
      "Content-Type: application/json\r\nContent-Length: 3000000\r\n\r\n");
  EXPECT_THAT(caller.HearAll(), StartsWith("HTTP/1.1 401 "));
}

TEST_F(OpenAiServerTest, ErrorsQuoteAtMost200Bytes) {
  const std::string huge(1 << 20, 'm'), path(8000, 'p');
  const Reply model = Post("/v1/completions", R"({"prompt": "a", "model": ")" + huge + "\"}");
  EXPECT_EQ(model.status, 404);
  EXPECT_LE(model.body.size(), 500u);
  for (const Reply& reply : {Get("/" + path), Get("/v1/models/" + path),
                             Ask("GET /", "Host: localhost\r\nOrigin: http://" + path + "\r\n"),
                             Post("/v1/completions", R"({"prompt": "a", "n": ")" + huge + "\"}"),
                             Post("/v1/completions", "{\"prompt\": " + huge)}) {
    EXPECT_GE(reply.status, 400);
    EXPECT_LE(reply.body.size(), 500u) << reply.body;
  }
}

TEST_F(OpenAiServerTest, AnswerOverBudgetIs503) {
  options_.http.budget_bytes = 1 << 20;
  const std::string ids = absl::StrCat("[", absl::StrJoin(std::vector<int>(60000, 10), ","), "]");
  const Reply tokens = Post("/detokenize", "{\"tokens\": " + ids + "}");
  EXPECT_EQ(tokens.status, 503) << tokens.body.substr(0, 200);
  const Reply lists = Post("/v1/completions", absl::StrCat("{\"x\": ", ids, "}"));
  EXPECT_EQ(lists.status, 503) << lists.body.substr(0, 200);
  const Reply logprobs = Post("/v1/completions",
                              R"({"prompt": "the keeper of the lamp", "max_tokens": 100, "n": 16,
                                  "echo": true, "logprobs": 20, "ignore_eos": true})");
  EXPECT_EQ(logprobs.status, 503) << logprobs.body.substr(0, 200);
  EXPECT_EQ(Post("/v1/completions", R"({"prompt": "a", "max_tokens": 1})").status, 200);
}

TEST_F(OpenAiServerTest, DetokenizeReturnsOriginalText) {
  const json tokens = Post("/tokenize", R"({"prompt": "the \"lamp\"\n"})").parsed()["tokens"];
  const Reply reply = Post("/detokenize", json{{"tokens", tokens}}.dump());
  EXPECT_THAT(reply.parsed()["prompt"].get<std::string>(), EndsWith("the \"lamp\"\n"));
  for (const char* wrong : {R"({"tokens": [999999]})", R"({"tokens": 3})", "{}", "[]"}) {
    EXPECT_EQ(Post("/detokenize", wrong).status, 400) << wrong;
  }
}

TEST(HttpStatusOf, OnlyServerFaultsAre500) {
  const std::set<int> listed = {400, 401, 403, 404, 429, 503};
  const std::set<absl::StatusCode> faults = {
      absl::StatusCode::kInternal, absl::StatusCode::kUnknown, absl::StatusCode::kDataLoss,
      absl::StatusCode::kAlreadyExists};
  for (int code = 1; code <= 16; ++code) {
    const auto status = static_cast<absl::StatusCode>(code);
    EXPECT_EQ(listed.count(HttpStatusOf(status)), 1 - faults.count(status)) << code;
  }
}

TEST_F(OpenAiServerTest, PathsWithoutGenerationAnswer) {
  EXPECT_EQ(Get("/v1/models").parsed()["data"][0]["id"], "tiny");
  EXPECT_EQ(Get("/v1/models/tiny").parsed()["max_model_len"],
            server_->engine()->config().max_position_embeddings);
  EXPECT_EQ(Get("/v1/models/tiny").parsed()["hearth_note"], "a base model");
  EXPECT_EQ(Get("/v1/models/other").status, 404);
  EXPECT_EQ(Get("/version").parsed()["version"], "test");
  EXPECT_THAT(Get("/").body, EndsWith("</html>\n"));
  const Reply tokens = Post("/tokenize", R"({"prompt": "the lamp"})");
  EXPECT_GT(tokens.parsed()["count"], 1) << tokens.body;
  json plain = tokens.parsed()["tokens"];
  plain.erase(0);
  EXPECT_EQ(Post("/tokenize", R"({"prompt": "the lamp", "add_special_tokens": false})")
                .parsed()["tokens"],
            plain);
  EXPECT_EQ(Get("/tokenizer_info").status, 200);
  EXPECT_EQ(Get("/health").status, 200);
  openai_->Drain();
}

}  // namespace
}  // namespace hearth
