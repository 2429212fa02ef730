// The questions and answers of hearthctl ask, as files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "services/hearthctl/ask/answer_file.h"
#include "services/hearthctl/ask/question_file.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

std::vector<AskedQuestion> Questions(const std::string& lines, uint32_t max_new_tokens = 8) {
  v1::GenerateRequest each;
  each.set_max_new_tokens(max_new_tokens);
  auto questions = ParseQuestions(lines, "Q: {question} A:", each);
  EXPECT_TRUE(questions.ok()) << questions.status();
  return questions.value_or(std::vector<AskedQuestion>());
}

TEST(QuestionFile, ReadsQuestionsEndingsAndTokenIds) {
  const auto questions = Questions(
      "{\"id\": \"q1\", \"question\": \"Who?\", \"kind\": \"names\"}\n"
      "\n"
      "{\"ending\": \" and\"}\r\n"
      "{\"id\": 7, \"prompt\": \" so\"}\n"
      "{\"token_ids\": [5, 7]}");
  ASSERT_EQ(questions.size(), 4u);
  EXPECT_EQ(questions[0].id, "q1");
  EXPECT_EQ(questions[0].text, "Q: Who? A:");
  EXPECT_EQ(questions[0].kind, "names");
  EXPECT_EQ(questions[1].id, "3") << "its line";
  EXPECT_EQ(questions[1].text, " and");
  EXPECT_EQ(questions[2].id, "7");
  EXPECT_EQ(questions[3].token_ids.at(1), 7u);
}

TEST(QuestionFile, RefusesALineWithItsNumber) {
  const std::vector<std::pair<std::string, std::string>> wrongs = {
      {"\n{\"question\": ", "line 2: is not a JSON object"},
      {"[1]", "line 1: is not a JSON object"},
      {"{\"question\": \"a\"}\n{\"qestion\": \"b\"}", "line 2: has the field \"qestion\""},
      {"{\"question\": 3}", "line 1: has the field \"question\" or its type wrong"},
      {"{\"question\": \"a\", \"ending\": \"b\"}", "line 1: has two of"},
      {"{\"id\": \"x\"}", "line 1: has nothing in"},
      {"{\"token_ids\": [-1]}", "line 1: has token_ids that are not"},
      {"{\"ending\": \"a\"}\n{\"id\": 1, \"ending\": \"b\"}", "line 2: has the id \"1\" of line 1"},
      {"\n \n", "there is no question"}};
  for (const auto& [lines, message] : wrongs) {
    const auto questions = ParseQuestions(lines, kDefaultQuestionTemplate, v1::GenerateRequest());
    EXPECT_EQ(questions.status().code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_THAT(std::string(questions.status().message()), HasSubstr(message));
  }
}

TEST(QuestionFile, ADigestIsOfTheEndingAndOfHowItIsAnswered) {
  const std::string line = "{\"id\": \"a\", \"ending\": \"x\"}";
  const std::string digest = Questions(line)[0].sha256;
  EXPECT_NE(Questions("{\"token_ids\": [5, 7]}")[0].sha256,
            Questions("{\"token_ids\": [57]}")[0].sha256);
  EXPECT_EQ(Questions("{\"id\": \"b\", \"ending\": \"x\", \"kind\": \"k\"}")[0].sha256, digest);
  EXPECT_NE(Questions("{\"id\": \"a\", \"ending\": \"y\"}")[0].sha256, digest);
  EXPECT_NE(Questions(line, 9)[0].sha256, digest);
}

class AnswerFileTest : public ::testing::Test {
 protected:
  std::string Line(const std::string& id) const {
    return JsonLine(Json{{"id", id},
                         {"answer", "Yes.\nNo."},
                         {"context_sha256", "c"},
                         {"question_sha256", "x-" + id}});
  }
  static AskedQuestion QuestionOf(const std::string& id, const std::string& digest) {
    AskedQuestion question;
    question.id = id;
    question.sha256 = digest;
    return question;
  }
  absl::StatusOr<std::unique_ptr<AnswerFile>> Open(const std::string& context = "c") {
    return AnswerFile::Open(folder_.File("answers.jsonl"), context);
  }

  TestFolder folder_;
};

TEST_F(AnswerFileTest, KnowsWhatAnEarlierRunWrote) {
  {
    auto file = Open();
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_FALSE((*file)->Has(QuestionOf("a", "x-a")).value());
    EXPECT_TRUE((*file)->Append(Line("a")).ok());
    EXPECT_TRUE((*file)->Append(Line("b")).ok());
  }
  auto file = Open();
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE((*file)->Has(QuestionOf("a", "x-a")).value());
  EXPECT_TRUE((*file)->Has(QuestionOf("b", "x-b")).value());
  EXPECT_FALSE((*file)->Has(QuestionOf("c", "x-c")).value());
  EXPECT_EQ(folder_.Read("answers.jsonl"), Line("a") + "\n" + Line("b") + "\n");
}

TEST_F(AnswerFileTest, AnAnswerOfAnotherModelIsNoticed) {
  Json line = Json::parse(Line("a"));
  line["model"] = "m";
  ASSERT_TRUE((*Open())->Append(JsonLine(line)).ok());
  EXPECT_TRUE((*Open())->CheckModel("m").ok());
  const absl::Status other = (*Open())->CheckModel("n");
  EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(other.message()), HasSubstr("line 1 is an answer of another model"));
}

TEST_F(AnswerFileTest, ATornLastLineIsDropped) {
  const std::string whole = Line("a") + "\n", torn = Line("b");
  for (const size_t bytes : {size_t{1}, torn.size() / 2, torn.size()}) {
    folder_.Write("answers.jsonl", whole + torn.substr(0, bytes));
    auto file = Open();
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_FALSE((*file)->Has(QuestionOf("b", "x-b")).value());
    ASSERT_TRUE((*file)->Append(Line("c")).ok());
    EXPECT_EQ(folder_.Read("answers.jsonl"), whole + Line("c") + "\n");
  }
}

TEST_F(AnswerFileTest, ALastLineThatBeginsAsNoAnswerIsLeftAlone) {
  for (const std::string content : {"notes of mine", "{\"question\": 1}", "{\"id\": \"q1\"}"}) {
    folder_.Write("answers.jsonl", content);
    EXPECT_EQ(Open().status().code(), absl::StatusCode::kInvalidArgument) << content;
    EXPECT_EQ(folder_.Read("answers.jsonl"), content);
  }
}

TEST_F(AnswerFileTest, AFileIsNotCutOffBeforeAnAnswerIsThere) {
  const std::string torn = Line("a") + "\n" + Line("b").substr(0, 20);
  folder_.Write("answers.jsonl", torn);
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(folder_.Read("answers.jsonl"), torn);
}

TEST_F(AnswerFileTest, AnInputFileIsNotWritten) {
  const std::string input = folder_.Write("questions.jsonl", "");
  for (const std::string& path : {input, folder_.path() + "/./questions.jsonl"}) {
    const auto file = AnswerFile::Open(path, "c", {"-", "/nonexistent", input});
    EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument) << path;
  }
}

TEST_F(AnswerFileTest, LongFilesAreReadWhole) {
  std::string lines;
  for (int i = 0; i < 2000; ++i) lines += Line(std::to_string(i)) + "\n";
  folder_.Write("answers.jsonl", lines);
  auto file = Open();
  ASSERT_TRUE(file.ok()) << file.status();
  for (const char* id : {"0", "999", "1999"}) {
    EXPECT_TRUE((*file)->Has(QuestionOf(id, std::string("x-") + id)).value()) << id;
  }
}

TEST_F(AnswerFileTest, AnotherContextOrQuestionIsNoticed) {
  folder_.Write("answers.jsonl", Line("a") + "\n");
  const auto other = Open("d");
  EXPECT_EQ(other.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(other.status().message()), HasSubstr("line 1"));
  auto file = Open();
  ASSERT_TRUE(file.ok()) << file.status();
  const auto has = (*file)->Has(QuestionOf("a", "x-other"));
  EXPECT_EQ(has.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(has.status().message()), HasSubstr("another question \"a\""));
}

TEST_F(AnswerFileTest, AFileWithoutAnswersIsLeftAlone) {
  for (const std::string content : {"notes of mine\n", "{}\n", "[]\n", "{\"id\": 3}\n"}) {
    folder_.Write("answers.jsonl", content);
    EXPECT_EQ(Open().status().code(), absl::StatusCode::kInvalidArgument) << content;
    EXPECT_EQ(folder_.Read("answers.jsonl"), content);
  }
  EXPECT_FALSE(AnswerFile::Open(folder_.path(), "c").ok());
  EXPECT_EQ(AnswerFile::Open("/dev/null", "c").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(AnswerFileTest, OneProgramAtATimeWritesIt) {
  auto first = Open();
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(Open().status().code(), absl::StatusCode::kFailedPrecondition);
  first->reset();
  EXPECT_TRUE(Open().ok());
}

}  // namespace
}  // namespace hearth
