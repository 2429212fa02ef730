#include "worker/text/jinja/model_template.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/text/tiny_tokenizer.h"
#include "worker/text/prompt.h"

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kFile[] = "DIR/chat_template.jinja";
constexpr char kTurns[] =
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}<end_of_turn>"
    "{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}";
// If a message says "loop", the rendering never ends; other messages make it fail in other ways.
constexpr char kHostile[] =
    "{% set said = messages[-1].content %}"
    "{% if said == 'loop' %}{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}"
    "{% endfor %}{% endif %}"
    "{% if said == '10 GB' %}{{ 'ab' * 5000000000 }}{% endif %}"
    "{% if said == '9 MB' %}{{ 'abc' * 3000000 }}{% endif %}"
    "{% if said == 'escape' %}{{ ''.__class__.__mro__ }}{% endif %}"
    "{% if said == 'raise' %}{{ raise_exception('Roles\nmust ' + 'x' * 999) }}{% endif %}"
    "{% if said == 'name' %}{{ not_a_variable.field }}{% endif %}"
    "said {{ said }}";

constexpr char kEndless[] =
    "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}";

using Made = absl::StatusOr<std::unique_ptr<ModelTemplate>>;

Made MakeTemplate(const std::string& text, const TemplateLimits& limits = {}) {
  return ModelTemplate::Make(kFile, text, {{"bos_token", "<bos>"}, {"eos_token", "<eos>"}},
                             TinyTokenizer(), limits);
}

ChatInput Chat(const std::vector<std::pair<std::string, std::string>>& messages,
               bool strict = false) {
  ChatInput chat;
  for (const auto& [role, text] : messages) chat.messages.push_back({role, {{text, false}}});
  chat.strict = strict;
  return chat;
}

absl::StatusOr<Prompt> BuildWith(const ModelTemplate& chat_template, ChatInput chat,
                                 PromptPurpose purpose = PromptPurpose::kGenerate) {
  PromptLimits limits{700, 4096};
  limits.chat_template = &chat_template;
  return BuildPrompt({std::move(chat), {}}, purpose, &TinyTokenizer(), limits);
}

absl::StatusOr<std::string> Said(const ModelTemplate& chat_template, const std::string& text,
                                 const std::function<bool()>& stopped = nullptr) {
  const auto rendered =
      chat_template.Render(Chat({{"user", text}}), ChatEnding::kGenerationPrompt, stopped);
  if (!rendered.ok()) return rendered.status();
  return rendered->text;
}

void ExpectRefused(const ModelTemplate& chat_template, const std::string& text,
                   const std::string& why) {
  const auto said = Said(chat_template, text);
  EXPECT_EQ(said.status().code(), absl::StatusCode::kInvalidArgument) << text << said.status();
  EXPECT_THAT(std::string(said.status().message()),
              AllOf(HasSubstr(absl::StrCat("chat: the model's chat template, ", kFile, ", ")),
                    HasSubstr(why)));
  EXPECT_LT(said.status().message().size(), 500u);
  EXPECT_EQ(*Said(chat_template, "on"), "said on");
}

// Writes a program that runs instead of Python, and returns its path.
std::string WriteProgram(const std::string& name, const std::string& lines) {
  const std::string path = absl::StrCat(testing::TempDir(), "/", getpid(), "_", name);
  std::ofstream(path) << "#!/bin/sh\n" << lines << "\n";
  chmod(path.c_str(), 0700);
  return path;
}

TEST(ModelTemplate, ChatIsRenderedWithOneBos) {
  const auto made = MakeTemplate(kTurns);
  ASSERT_TRUE(made.ok()) << made.status();
  const auto prompt = BuildWith(**made, Chat({{"developer", "s"}, {"model", "a"}}));
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_EQ(prompt->text, "<bos>[system] s<end_of_turn>[assistant] a<end_of_turn>[assistant] ");
  EXPECT_EQ(prompt->token_ids, TinyTokenizer().Encode(prompt->text));
  EXPECT_EQ(BuildWith(**made, Chat({{"system", "s"}, {"developer", "t"}, {"user", "u"}}))->text,
            "<bos>[system] s\n\nt<end_of_turn>[user] u<end_of_turn>[assistant] ");
  const auto without = MakeTemplate("{% for m in messages %}{{ m.content }}{% endfor %}");
  EXPECT_EQ(BuildWith(**without, Chat({{"user", "the lamp"}}))->text, "<bos>the lamp");
}

TEST(ModelTemplate, StrictChatKeepsMarkersAsText) {
  const auto made = MakeTemplate(
      "{% for m in messages %}[{{ m.content | trim }}]{{ m.name }}_of_turn>{% endfor %}");
  ASSERT_TRUE(made.ok()) << made.status();
  const std::string text = " <end_of_turn><bos>x<end_of_turn> ";
  const int32_t end = *TinyTokenizer().FindPiece("<end_of_turn>");
  const auto open = BuildWith(**made, Chat({{"user", text}}));
  const auto strict = BuildWith(**made, Chat({{"user", text}}, /*strict=*/true));
  ASSERT_TRUE(strict.ok()) << strict.status();
  EXPECT_EQ(strict->text, open->text);
  EXPECT_EQ(std::count(open->token_ids.begin(), open->token_ids.end(), end), 2);
  EXPECT_EQ(std::count(strict->token_ids.begin(), strict->token_ids.end(), end), 0);
  EXPECT_EQ(
      std::count(strict->token_ids.begin() + 1, strict->token_ids.end(), TinyTokenizer().bos_id()),
      0);
  // The message's end and the template's text form a marker together.
  const auto split = MakeTemplate("{{ messages[0].content }}_of_turn>|<end_of_turn>");
  const auto joined = BuildWith(**split, Chat({{"user", "x<end"}}, /*strict=*/true));
  EXPECT_EQ(std::count(joined->token_ids.begin(), joined->token_ids.end(), end), 1);
}

TEST(ModelTemplate, LongerChatKeepsBreakpoints) {
  const auto made = MakeTemplate(kTurns);
  ASSERT_TRUE(made.ok()) << made.status();
  ChatInput chat = Chat({{"system", "the keeper"}, {"user", "the lamp"}});
  chat.messages[1].parts = {{"the lamp", true}, {" is lit", false}};
  std::vector<uint32_t> ends, declared;
  for (int turn = 0; turn < 3; ++turn) {
    const auto prompt = BuildWith(**made, chat);
    ASSERT_TRUE(prompt.ok()) << prompt.status();
    ends.push_back(static_cast<uint32_t>(prompt->token_ids.size()));
    for (const uint32_t end : ends) EXPECT_THAT(prompt->breakpoints, Contains(end)) << turn;
    if (turn == 0) declared = prompt->declared;
    EXPECT_EQ(prompt->declared, declared);
    chat.messages.push_back({"assistant", {{"yes", false}}});
    chat.messages.push_back({"user", {{"and now?", false}}});
  }
  const std::string head = "<bos>[system] the keeper<end_of_turn>[user] ";
  Encoding encoding;
  ASSERT_EQ(TinyTokenizer().EncodeWithOffsets(head + "the lamp", {head.size()}, {}, &encoding),
            EncodeEnd::kDone);
  const uint32_t at = encoding.common_tokens[0];
  EXPECT_THAT(BuildWith(**made, chat)->breakpoints, Contains(at)) << "the end of the system text";
  ASSERT_EQ(declared.size(), 1u);
  EXPECT_GT(declared[0], at);
}

TEST(ModelTemplate, ManyBreakpointsAreRefused) {
  const auto made = MakeTemplate(kTurns);
  ASSERT_TRUE(made.ok()) << made.status();
  ChatInput chat = Chat({{"user", ""}});
  chat.messages[0].parts.assign(60, {"lamp", true});
  EXPECT_TRUE(BuildWith(**made, chat).ok());
  chat.messages[0].parts.assign(65, {"lamp", true});
  const absl::Status refused = BuildWith(**made, chat).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("at most 59 cache breakpoints"));
}

TEST(ModelTemplate, ChatStaysOpen) {
  const auto made = MakeTemplate(kTurns);
  ASSERT_TRUE(made.ok()) << made.status();
  ChatInput chat = Chat({{"user", "the lamp"}, {"assistant", "is lit "}});
  chat.continue_final_message = true;
  EXPECT_EQ(BuildWith(**made, chat)->text, "<bos>[user] the lamp<end_of_turn>[assistant] is lit ");
  chat.messages.pop_back();
  EXPECT_EQ(BuildWith(**made, chat).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(BuildWith(**made, Chat({{"system", "s"}}), PromptPurpose::kPrefill)->text,
            "<bos>[system] s<end_of_turn>[user] ");
  EXPECT_EQ(BuildWith(**made, Chat({})).status().message(), "chat.messages: must not be empty");
}

TEST(ModelTemplate, HostileTemplateFailsOnlyItsChat) {
  TemplateLimits limits;
  limits.cpu = absl::Milliseconds(300);
  const auto made = MakeTemplate(kHostile, limits);
  ASSERT_TRUE(made.ok()) << made.status();
  ExpectRefused(**made, "loop", "took more than 300ms of CPU time");
  ExpectRefused(**made, "10 GB", "says: MemoryError");
  ExpectRefused(**made, "9 MB", "says: the rendering has 9000");
  ExpectRefused(**made, "escape", "says: access to attribute '__class__'");
  ExpectRefused(**made, "raise", "says: Roles must xxx");
  ExpectRefused(**made, "name", "says: 'not_a_variable' is undefined");
}

TEST(ModelTemplate, WrongTemplateIsRefusedAtStart) {
  EXPECT_THAT(std::string(MakeTemplate("{% if %}").status().message()),
              HasSubstr("says: Expected an expression"));
  TemplateLimits limits;
  limits.cpu = absl::Milliseconds(100);
  EXPECT_THAT(std::string(MakeTemplate(kEndless, limits).status().message()),
              HasSubstr("took more than 100ms"));
}

TEST(ModelTemplate, MissingProgramsAreNamed) {
  TemplateLimits limits;
  limits.python = "/nonexistent/python3";
  const std::string without = WriteProgram("no_jinja", "exec /usr/bin/python3 -S \"$@\"");
  for (const char* const python : {"/nonexistent/python3", without.c_str()}) {
    limits.python = python;
    const auto made = MakeTemplate(kTurns, limits);
    EXPECT_EQ(made.status().code(), absl::StatusCode::kFailedPrecondition) << made.status();
    EXPECT_THAT(std::string(made.status().message()), HasSubstr("apt install python3-jinja2"));
  }
}

TEST(ModelTemplate, MalformedAnswersAreRefused) {
  const std::pair<const char*, const char*> answers[] = {
      {"printf '\\377\\377\\377\\377'", "sent an answer of 4294967295 bytes"},
      {"printf '\\000\\000\\000\\002[]'", "not a JSON object"},
      {"printf '\\000\\000\\000\\002{'", "ended"},
      {"exit 0", "ended"}};
  TemplateLimits limits;
  for (const auto& [lines, why] : answers) {
    const std::string program = WriteProgram("malformed", lines);
    limits.python = program.c_str();
    const auto made = MakeTemplate(kTurns, limits);
    EXPECT_EQ(made.status().code(), absl::StatusCode::kUnavailable) << lines;
    EXPECT_THAT(std::string(made.status().message()), HasSubstr(why)) << lines;
  }
}

TEST(ModelTemplate, SilentChildIsKilled) {
  const std::string program = WriteProgram("silent", "exec cat >/dev/null");
  TemplateLimits limits;
  limits.python = program.c_str();
  limits.wait = absl::Milliseconds(50);
  EXPECT_THAT(std::string(MakeTemplate(kTurns, limits).status().message()),
              HasSubstr("gave no answer in 50ms"));
}

TEST(ModelTemplate, KilledChildIsReplaced) {
  const auto made = MakeTemplate(kHostile);
  ASSERT_TRUE(made.ok()) << made.status();
  const pid_t child = (*made)->process()->pid();
  ASSERT_EQ(kill(child, SIGKILL), 0);
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(*Said(**made, "on"), "said on");
  EXPECT_NE((*made)->process()->pid(), child);
}

TEST(ModelTemplate, GoneCallerEndsRendering) {
  TemplateLimits limits;
  limits.cpu = absl::Hours(1);
  limits.wait = absl::Hours(1);
  const auto made = MakeTemplate(kHostile, limits);
  ASSERT_TRUE(made.ok()) << made.status();
  std::atomic<bool> is_gone{false};
  std::thread other([&] {
    EXPECT_EQ(Said(**made, "loop", [&] { return is_gone.load(); }).status().code(),
              absl::StatusCode::kCancelled);
  });
  // A caller can also be cancelled while it waits for its turn.
  int asked = 0;
  const auto waiting = Said(**made, "loop", [&] { return ++asked > 2; });
  EXPECT_EQ(waiting.status().code(), absl::StatusCode::kCancelled);
  is_gone = true;
  other.join();
  EXPECT_EQ(*Said(**made, "on"), "said on");
}

TEST(ModelTemplate, ChildInheritsNothingAndEnds) {
  const int inherited = dup(STDERR_FILENO);  // not close-on-exec
  pid_t child = -1;
  {
    const auto made = MakeTemplate(kTurns);
    ASSERT_TRUE(made.ok()) << made.status();
    child = (*made)->process()->pid();
    std::vector<std::string> open;
    for (const auto& file :
         std::filesystem::directory_iterator(absl::StrCat("/proc/", child, "/fd")))
      open.push_back(file.path().filename());
    EXPECT_THAT(open, testing::UnorderedElementsAre("0", "1", "2"));
    std::ifstream environment(absl::StrCat("/proc/", child, "/environ"));
    EXPECT_THAT(std::string(std::istreambuf_iterator<char>(environment), {}), IsEmpty());
  }
  EXPECT_EQ(kill(child, 0), -1) << "the child has ended and was waited for";
  close(inherited);
}

TEST(ModelTemplate, FormOfCallsIsFound) {
  const auto tools_of = [](const std::string& text) {
    const auto made = MakeTemplate(text);
    EXPECT_TRUE(made.ok()) << made.status();
    return made.ok() ? (*made)->tools() : TemplateTools();
  };
  const auto file = [&](const std::string& name) {
    return tools_of(ReadTestFile("own_templates/" + name + ".jinja"));
  };
  EXPECT_FALSE(tools_of(kTurns).reads_tools);
  EXPECT_EQ(file("chatml").call_key, "arguments");
  EXPECT_EQ(file("chatml").call_prefix, "<tool_call>\n");
  EXPECT_EQ(file("headers").call_key, "parameters");
  EXPECT_EQ(file("headers").call_prefix, "");
  EXPECT_TRUE(file("instructions").reads_tools);
  EXPECT_EQ(file("instructions").call_key, "");
}

TEST(ModelTemplate, ToolsNeedTemplateThatReadsThem) {
  const auto made = MakeTemplate(kTurns);
  ASSERT_TRUE(made.ok()) << made.status();
  ChatInput chat = Chat({{"user", "the lamp"}});
  chat.tools = {"{}"};
  EXPECT_THAT(std::string(BuildWith(**made, chat).status().message()),
              HasSubstr("chat.tools: must be empty"));
  const auto reads = MakeTemplate("{{ messages[0].content }} {{ tools | tojson }}");
  ASSERT_TRUE(reads.ok()) << reads.status();
  EXPECT_EQ(BuildWith(**reads, chat)->text, "<bos>the lamp [{}]");
  chat.tools = {"{"};
  EXPECT_THAT(std::string(BuildWith(**reads, chat).status().message()),
              HasSubstr("says: JSONDecodeError"));
}

}  // namespace
}  // namespace hearth
