// Transcripts: files of commands and their expected output. The test runs the commands again and
// compares.
//
// In transcripts/NAME.txt:
//     "== NAME"    begins a case with its own store, two workers and a folder
//     "$ WORDS"    runs a hearthctl command
//     "$$ WORDS"   runs a hearthctl command whose standard error is a terminal
//     "@ WORDS"    changes a setting (Case::Setting)
//     "> ", "! "   expected output and errors
//     "? "         expected exit code, if not 0
// $STORE, $WORKER, $OTHER and $DIR stand for the addresses and the folder, $ID for the restore
// point listed last, $INC for the store's incarnation, N for measured numbers.
// HEARTH_WRITE_TRANSCRIPTS=1 rewrites the files; then read `git diff`.
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <regex>
#include <sstream>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "bench/simulate/simulate.h"
#include "services/cli/version.h"
#include "tests/proto/tiny_snapshot.h"
#include "tests/services/hearthctl/fake_worker.h"
#include "tests/services/hearthctl/run_cli.h"
#include "tests/services/store/store_server.h"

namespace hearth {
namespace {

// Splits a line into words at spaces outside of '...'.
std::vector<std::string> WordsOf(const std::string& line) {
  std::vector<std::string> words;
  bool quoted = false, inside = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == ' ' && !quoted) {
      inside = false;
      continue;
    }
    if (!inside) words.emplace_back();
    inside = true;
    if (line[i] == '\'') {
      quoted = !quoted;
    } else {
      words.back().push_back(line[i]);
    }
  }
  return words;
}

std::string Slurp(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

class Case {
 public:
  // Runs one line that begins with "@" or "$". Returns its output.
  std::string Run(const std::string& line) {
    std::vector<std::string> words = WordsOf(absl::StrReplaceAll(
        line, {{"$STORE", absl::StrContains(line, "$STORE") ? store().address() : ""},
               {"$WORKER", worker_.address()},
               {"$OTHER", other_.address()},
               {"$DIR", folder_.path()},
               {"$GOLDEN", HEARTH_GOLDEN_DIR},
               {"$INC", incarnation_},
               {"$ID", id_}}));
    const std::string kind = words.front();
    words.erase(words.begin());
    if (kind == "@") return Setting(words);
    for (std::string& word : words) {
      if (std::string plain; absl::CUnescape(word, &plain)) word = plain;
    }
    auto program = RunHearthctl;
    if (!words.empty() && words[0] == "hearth-simulate") program = RunSimulator;
    if (program != RunHearthctl) words.erase(words.begin());
    const CliResult result = RunCli(words, std::exchange(input_, ""), kind == "$$", program);
    for (const Json& object : result.objects) {
      if (object.contains("id") && object["id"].is_string()) id_ = object["id"].get<std::string>();
      if (object.contains("incarnation")) incarnation_ = JsonLine(object["incarnation"]);
    }
    std::string text = Printed("> ", result.out) + Printed("! ", result.err);
    if (result.code != kExitOk) absl::StrAppend(&text, "? ", result.code, "\n");
    return text;
  }

 private:
  StoreServer& store() {
    if (store_ == nullptr) {
      store_ = std::make_unique<StoreServer>(StoreServer::SmallStore(folder_.File("data")));
    }
    return *store_;
  }

  // Replaces values that differ between runs by placeholders.
  std::string Printed(const std::string& mark, const std::string& text) const {
    static const std::pair<std::regex, const char*> kMasks[] = {
        // In a column, a longer number has fewer spaces before it.
        {std::regex(R"(  [0-9]{2} s\b)"), "   N s"},
        {std::regex(R"(  [0-9]{3} s\b)"), "    N s"},
        {std::regex(R"(\b[0-9]+(\.[0-9]+)? (ms|s)\b)"), "N $2"},
        {std::regex(
             R"re(("(age_s|incarnation|total_ms|ttft_ms|uptime_s|[a-z_]+_unix_s)":)[0-9.e+-]+)re"),
         "$1N"},
        {std::regex("((incarnation|acquire time|acquiring thread) )[0-9]+"), "$1N"},
        {std::regex(R"(("request_id":")[0-9a-f]+)"), "$1N"},
        {std::regex("(disk: )[0-9.]+ [kM]?B( of)"), "$1N B$2"},
        {std::regex("(\ncommit )[0-9a-z-]+"), "$1COMMIT"}};
    std::string masked = absl::StrReplaceAll(text, {{worker_.address(), "$WORKER"},
                                                    {other_.address(), "$OTHER"},
                                                    {folder_.path(), "$DIR"},
                                                    {HEARTH_GOLDEN_DIR, "$GOLDEN"},
                                                    {kVersion, "VERSION"},
                                                    {"\r", "\\r"},
                                                    {"\x1b", "\\e"}});
    if (store_ != nullptr) masked = absl::StrReplaceAll(masked, {{store_->address(), "$STORE"}});
    if (!id_.empty()) {
      masked = absl::StrReplaceAll(masked, {{id_, "$ID"}});
      masked = absl::StrReplaceAll(masked, {{id_.substr(0, 16), "$ID16"}});
      masked = absl::StrReplaceAll(masked, {{id_.substr(0, 12), "$ID12"}});
    }
    for (const auto& [what, mask] : kMasks) masked = std::regex_replace(masked, what, mask);
    std::string lines;
    if (absl::EndsWith(masked, "\n")) masked.pop_back();
    if (masked.empty() && text.empty()) return "";
    for (absl::string_view line : absl::StrSplit(masked, '\n')) {
      absl::StrAppend(&lines, absl::StripTrailingAsciiWhitespace(absl::StrCat(mark, line)), "\n");
    }
    return lines;
  }

  template <typename Message>
  std::string Sent(const std::vector<Message>& requests) const {
    std::string text = absl::StrCat(requests.size(), " so far");
    if (!requests.empty()) absl::StrAppend(&text, ": ", requests.back().ShortDebugString());
    return Printed("> ", text);
  }

  void SetKnob(const std::vector<std::string>& words);
  std::string Setting(const std::vector<std::string>& words);

  const TestFolder folder_;
  FakeWorker worker_, other_;
  std::unique_ptr<StoreServer> store_;
  std::string id_, incarnation_, input_;
};

grpc::Status Refusal(const std::vector<std::string>& words) {
  const std::map<std::string, grpc::StatusCode> codes = {
      {"DEADLINE_EXCEEDED", grpc::StatusCode::DEADLINE_EXCEEDED},
      {"INVALID_ARGUMENT", grpc::StatusCode::INVALID_ARGUMENT},
      {"UNAVAILABLE", grpc::StatusCode::UNAVAILABLE},
      {"OK", grpc::StatusCode::OK}};
  return {codes.at(words.at(2)), words.size() > 3 ? words[3] : ""};
}

// Runs a line "@ worker NAME VALUE" or "@ other NAME VALUE", which sets an option of a FakeWorker.
void Case::SetKnob(const std::vector<std::string>& words) {
  using Set = std::function<void(FakeWorker*)>;
  const auto number = [&] { return std::stoi(words.at(2)); };
  const std::map<std::string, Set> knobs = {
      {"failure", [&](FakeWorker* to) { to->failure = Refusal(words); }},
      {"prefill_failure", [&](FakeWorker* to) { to->prefill_failure = Refusal(words); }},
      {"failure_between_words",
       [&](FakeWorker* to) { to->failure_between_words = Refusal(words); }},
      {"stored", [&](FakeWorker* to) { to->stored.insert(words.at(2)); }},
      {"answers_get_model", [&](FakeWorker* to) { to->answers_get_model = true; }},
      {"store_works", [&](FakeWorker* to) { to->store_works = number() != 0; }},
      {"field_dtype", [&](FakeWorker* to) { to->field_dtype = words.at(2); }},
      {"unreachable_store", [&](FakeWorker* to) { to->unreachable_store = words.at(2); }},
      {"explains",
       [&](FakeWorker* to) {
         EXPECT_TRUE(google::protobuf::TextFormat::MergeFromString(words.at(2), &to->explained));
       }},
      {"explains_id", [&](FakeWorker* to) {
         to->explained.add_boundaries()->set_restore_point_id(absl::HexStringToBytes(id_));
       }}};
  knobs.at(words.at(1))(words.at(0) == "worker" ? &worker_ : &other_);
}

std::string Case::Setting(const std::vector<std::string>& words) {
  const std::string& what = words.at(0);
  if (what == "worker" || what == "other") {
    SetKnob(words);
  } else if (what == "file") {  // NAME TEXT; the text may have escapes such as \n and \xFF
    std::string text;
    EXPECT_TRUE(absl::CUnescape(words.at(2), &text));
    folder_.Write(words.at(1), text);
  } else if (what == "trace") {  // 60 requests: one of 7 pairs of blocks, then a new block
    std::string text;
    for (int i = 0; i < 60; ++i) {
      absl::StrAppend(&text, R"({"timestamp":)", i * 1000, R"(,"input_length":1100,"hash_ids":[)",
                      i % 7, ",", i % 7 + 10, ",", i + 20, "]}\n");
    }
    folder_.Write(words.at(1), text);
  } else if (what == "input") {  // TEXT: standard input of the next command
    EXPECT_TRUE(absl::CUnescape(words.at(1), &input_));
  } else if (what == "tiny") {  // NAME [OFFSET of a byte to change]: the tiny snapshot file
    std::string file = TinyFile();
    if (words.size() > 2) file.at(std::stoul(words[2])) ^= 1;
    folder_.Write(words.at(1), file);
  } else if (what == "show") {
    return Printed("> ", folder_.Read(words.at(1)));
  } else if (what == "has") {  // FILE TEXT: checks that the file contains the text
    return absl::StrCat("> ", absl::StrContains(folder_.Read(words.at(1)), words.at(2)), "\n");
  } else if (what == "same") {  // FILE FILE: checks that the files are equal
    return absl::StrCat("> ", folder_.Read(words.at(1)) == folder_.Read(words.at(2)), "\n");
  } else if (what == "generated") {
    return Sent(worker_.generated);
  } else if (what == "prefilled") {
    return Sent(worker_.prefilled);
  } else if (what == "asked") {  // prints the prompts of the Generate calls, in order
    std::string prompts;
    for (const auto& request : worker_.generated) {
      absl::StrAppend(&prompts, request.prompt().ShortDebugString(), "\n");
    }
    return Printed("> ", prompts);
  } else if (what == "drain") {
    store().admission()->Close();
  } else {
    ADD_FAILURE() << "no setting: " << what;
  }
  return "";
}

class TranscriptTest : public testing::TestWithParam<const char*> {};

TEST_P(TranscriptTest, OutputMatchesTranscript) {
  const std::string path = absl::StrCat(HEARTHCTL_TRANSCRIPTS, "/", GetParam(), ".txt");
  const std::string expected = Slurp(path);
  ASSERT_FALSE(expected.empty()) << path;
  std::string actual;
  std::unique_ptr<Case> running;
  for (absl::string_view line : absl::StrSplit(absl::StripSuffix(expected, "\n"), '\n')) {
    if (absl::StartsWith(line, "> ") || absl::StartsWith(line, "! ") || line == ">" ||
        line == "!" || absl::StartsWith(line, "? ")) {
      continue;
    }
    absl::StrAppend(&actual, line, "\n");
    if (absl::StartsWith(line, "== ")) running = std::make_unique<Case>();
    if (absl::StartsWith(line, "$") || absl::StartsWith(line, "@ ")) {
      ASSERT_NE(running, nullptr) << line;
      actual += running->Run(std::string(line));
    }
  }
  if (std::getenv("HEARTH_WRITE_TRANSCRIPTS") != nullptr) {
    std::ofstream(path) << actual;
  } else {
    EXPECT_EQ(actual, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(All, TranscriptTest,
                         testing::Values("chat", "doctor", "explain", "generate", "simulate",
                                         "store", "usage", "warm"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace hearth
