// Tests of hearthctl on a pseudo terminal.
#include "tests/services/hearthctl/terminal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <csignal>
#include <memory>
#include <string>

#include "absl/synchronization/notification.h"
#include "services/hearthctl/edited_lines.h"
#include "tests/services/hearthctl/fake_worker.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

using ::testing::EndsWith;

TEST(TerminalTest, InterruptedGenerateExitsBySignal) {
  absl::Notification go_on;  // destroyed after the worker, whose call waits for it
  FakeWorker worker;
  worker.between_words = [&go_on] { go_on.WaitForNotification(); };
  Terminal terminal({"generate", "--worker", worker.address(), "--prompt", "a"});
  ASSERT_TRUE(terminal.WaitFor("Hello")) << terminal.screen();
  terminal.Type("\x03");
  const int status = terminal.WaitEnd();
  go_on.Notify();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) << status;
  EXPECT_THAT(terminal.screen(), EndsWith("\r\n"));
}

TEST(TerminalTest, AnswerEscapesControlSequences) {
  FakeWorker worker;
  worker.first_word = "\x1b[31m\xe2\x80\xae";
  Terminal terminal({"generate", "--worker", worker.address(), "a"}, {{"TERM", "dumb"}});
  EXPECT_TRUE(terminal.WaitFor("\\x1b[31m\\u202e there")) << terminal.screen();
  EXPECT_EQ(terminal.WaitEnd(), 0);
}

// Waits until a line can be edited: the prompt is shown, and bracketed paste is enabled.
bool WaitForPrompt(Terminal* terminal) {
  return terminal->WaitFor("you> ") && terminal->WaitFor("\x1b[?2004h");
}

// Returns the text of the last user message that was sent to the worker.
std::string LastQuestion(const FakeWorker& worker) {
  const v1::Chat& chat = worker.generated.back().prompt().chat();
  return chat.messages(chat.messages_size() - 1).parts(0).text();
}

TEST(TerminalTest, ChatLineCanBeEditedAndRecalled) {
  FakeWorker worker;
  Terminal terminal({"chat", "--worker", worker.address()});
  ASSERT_TRUE(WaitForPrompt(&terminal));
  // Keys: cursor left three times, Backspace, two letters, Return.
  terminal.Type("tree\x1b[D\x1b[D\x1b[D\x7fsh\r");
  ASSERT_TRUE(terminal.WaitFor("first token after")) << terminal.screen();
  ASSERT_TRUE(WaitForPrompt(&terminal));
  EXPECT_EQ(LastQuestion(worker), "shree");
  terminal.Type("\x1b[A!\r");
  ASSERT_TRUE(terminal.WaitFor("first token after")) << terminal.screen();
  ASSERT_TRUE(WaitForPrompt(&terminal));
  EXPECT_EQ(LastQuestion(worker), "shree!");
  terminal.Type("\x04");
  EXPECT_EQ(terminal.WaitEnd(), 0);
}

TEST(TerminalTest, MultilinePasteIsOneTurn) {
  FakeWorker worker;
  Terminal terminal({"chat", "--worker", worker.address()});
  ASSERT_TRUE(WaitForPrompt(&terminal));
  terminal.Type("What is\xC3\xA9 \x1b[200~one\rtwo\nthr\xC3\xA9\xC3\xA9\x1b[201~?\r");
  ASSERT_TRUE(terminal.WaitFor("two\r\nthr\xC3\xA9\xC3\xA9?")) << terminal.screen();
  ASSERT_TRUE(terminal.WaitFor("first token after")) << terminal.screen();
  ASSERT_TRUE(WaitForPrompt(&terminal));
  EXPECT_EQ(LastQuestion(worker), "What is\xC3\xA9 one\ntwo\nthr\xC3\xA9\xC3\xA9?");
  EXPECT_EQ(worker.generated.size(), 1u);
  terminal.Type("\x1b[200~a single one\x1b[201~\r");
  ASSERT_TRUE(terminal.WaitFor("first token after")) << terminal.screen();
  EXPECT_EQ(LastQuestion(worker), "a single one");
  // The paste contains a tab and Ctrl-U, which would be editing keys if they were typed.
  ASSERT_TRUE(WaitForPrompt(&terminal));
  terminal.Type("\x1b[200~int a;\tb\x15\x1b[201~\r");
  ASSERT_TRUE(terminal.WaitFor("first token after")) << terminal.screen();
  ASSERT_TRUE(WaitForPrompt(&terminal));
  EXPECT_EQ(LastQuestion(worker), "int a;\tb\x15");
}

TEST(TerminalTest, PasteCanBeEditedAndRecalled) {
  FakeWorker worker;
  Terminal terminal({"chat", "--worker", worker.address()});
  ASSERT_TRUE(WaitForPrompt(&terminal));
  terminal.Type("\x1b[200~one\rtwo\x1b[201~\x1b[D\x7f\r");
  ASSERT_TRUE(terminal.WaitFor("first token after")) << terminal.screen();
  ASSERT_TRUE(WaitForPrompt(&terminal));
  EXPECT_EQ(LastQuestion(worker), "one\nto");
  terminal.Type("\x1b[A!\r");
  ASSERT_TRUE(terminal.WaitFor("first token after")) << terminal.screen();
  ASSERT_TRUE(WaitForPrompt(&terminal));
  EXPECT_EQ(LastQuestion(worker), "one\nto!");
}

TEST(TerminalTest, LargePasteIsReadWhole) {
  FakeWorker worker;
  Terminal terminal({"chat", "--worker", worker.address()});
  const std::string line = "a line of a long paste\n";
  for (const size_t size : {5000u, 100000u}) {
    std::string text;
    while (text.size() < size) text += line;
    text.resize(size, 'x');
    text.back() = 'z';
    ASSERT_TRUE(WaitForPrompt(&terminal)) << size;
    terminal.Type("\x1b[200~" + text + "\x1b[201~!\r");
    ASSERT_TRUE(terminal.WaitFor("first token after")) << size;
    EXPECT_EQ(LastQuestion(worker), text + "!") << size;
  }
}

TEST(TerminalTest, InvalidPasteIsReplacedByNote) {
  FakeWorker worker;
  Terminal terminal({"chat", "--worker", worker.address()});
  ASSERT_TRUE(WaitForPrompt(&terminal));
  terminal.Type("a\x1b[200~" + std::string(EditedLines::kMaxPasteBytes + 5000, 'x') +
                "\x1b[201~b\r");
  ASSERT_TRUE(terminal.WaitFor("first token after")) << terminal.screen();
  EXPECT_EQ(LastQuestion(worker), "a[a paste of more than 1 MiB was ignored]b");
  ASSERT_TRUE(WaitForPrompt(&terminal));
  terminal.Type("a\x1b[200~\xFF\x1b[201~b\r");
  ASSERT_TRUE(terminal.WaitFor("first token after")) << terminal.screen();
  EXPECT_EQ(LastQuestion(worker), "a[a paste that is not UTF-8 was ignored]b");
}

TEST(TerminalTest, InterruptAtChatInputRestoresTerminal) {
  FakeWorker worker;
  Terminal terminal({"chat", "--worker", worker.address()});
  ASSERT_TRUE(WaitForPrompt(&terminal));
  terminal.Type("half a thou");
  ASSERT_TRUE(terminal.WaitFor("thou"));
  terminal.Type("\x03");
  EXPECT_EQ(terminal.WaitEnd(), 0);
  EXPECT_TRUE(terminal.EchoesInput());
  EXPECT_THAT(terminal.screen(), EndsWith("\r\n"));
}

TEST(TerminalTest, InterruptDuringAnswerKeepsChat) {
  absl::Notification go_on;  // destroyed after the worker, whose call waits for it
  FakeWorker worker;
  worker.between_words = [&] { go_on.WaitForNotification(); };
  Terminal terminal({"chat", "--worker", worker.address()});
  ASSERT_TRUE(WaitForPrompt(&terminal));
  terminal.Type("one\r");
  ASSERT_TRUE(terminal.WaitFor("model> Hello")) << terminal.screen();
  terminal.Type("\x03");
  ASSERT_TRUE(terminal.WaitFor(", stopped]")) << terminal.screen();
  go_on.Notify();
  ASSERT_TRUE(WaitForPrompt(&terminal));
  terminal.Type("/exit\r");
  EXPECT_EQ(terminal.WaitEnd(), 0);
}

TEST(TerminalTest, NoColorDisablesDimmedLine) {
  FakeWorker worker;
  for (const char* refused : {"", "1"}) {
    Terminal terminal({"chat", "--worker", worker.address()}, {{"NO_COLOR", refused}});
    ASSERT_TRUE(WaitForPrompt(&terminal));
    terminal.Type("one\r");
    ASSERT_TRUE(terminal.WaitFor("first token after")) << terminal.screen();
    ASSERT_TRUE(terminal.WaitFor("]"));
    EXPECT_EQ(terminal.screen().find("\x1b[2m") == std::string::npos, *refused != '\0');
  }
}

TEST(TerminalTest, ConversationSurvivesLostWorker) {
  TestFolder folder;
  auto worker = std::make_unique<FakeWorker>();
  Terminal terminal({"chat", "--worker", worker->address()});
  ASSERT_TRUE(WaitForPrompt(&terminal));
  terminal.Type("one\r");
  ASSERT_TRUE(terminal.WaitFor("first token after")) << terminal.screen();
  worker.reset();
  ASSERT_TRUE(WaitForPrompt(&terminal));
  terminal.Type("two\r");
  ASSERT_TRUE(terminal.WaitFor("hearthctl: UNAVAILABLE")) << terminal.screen();
  ASSERT_TRUE(WaitForPrompt(&terminal));
  terminal.Type("/save " + folder.File("talk.json") + "\r");
  ASSERT_TRUE(terminal.WaitFor("saved 2 messages")) << terminal.screen();
  EXPECT_THAT(folder.Read("talk.json"), testing::HasSubstr("Hello there"));
}

}  // namespace
}  // namespace hearth
