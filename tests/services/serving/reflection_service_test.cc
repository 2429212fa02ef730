#include "services/serving/server/reflection_service.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.pb.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "proto/inference.grpc.pb.h"
#include "proto/reflection.grpc.pb.h"
#include "services/rpc/transport_options.h"
#include "services/serving/server/server_runner.h"
#include "tests/services/rpc/connected_to.h"

namespace hearth {
namespace {

namespace reflection = grpc::reflection::v1;
using reflection::ServerReflectionRequest;
using reflection::ServerReflectionResponse;
using ::testing::Contains;
using ::testing::HasSubstr;

constexpr char kV1[] = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
constexpr char kV1Alpha[] = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";

ServerReflectionRequest ListServices() {
  ServerReflectionRequest request;
  request.set_list_services("*");
  return request;
}
ServerReflectionRequest FileOf(const std::string& symbol) {
  ServerReflectionRequest request;
  request.set_file_containing_symbol(symbol);
  return request;
}

// One call of a client, of either version: their messages are the same on the wire.
class Conversation {
 public:
  Conversation(const std::shared_ptr<grpc::Channel>& channel, const char* method)
      : method_(method, grpc::internal::RpcMethod::BIDI_STREAMING),
        stream_(grpc::internal::ClientReaderWriterFactory<
                ServerReflectionRequest, ServerReflectionResponse>::Create(channel.get(), method_,
                                                                           &context_)) {}
  // Without an answer: the call has ended.
  bool Ask(const ServerReflectionRequest& request, ServerReflectionResponse* answer) {
    stream_->Write(request);
    return stream_->Read(answer);
  }
  grpc::Status Finish() {
    stream_->WritesDone();
    return stream_->Finish();
  }

 private:
  grpc::ClientContext context_;
  const grpc::internal::RpcMethod method_;
  const std::unique_ptr<grpc::ClientReaderWriter<ServerReflectionRequest, ServerReflectionResponse>>
      stream_;
};

class ReflectionServiceTest : public testing::Test {
 protected:
  void SetUp() override {
    auto runner =
        ServerRunner::Start("127.0.0.1:0", {{"hearth.v1.Inference", &service_}}, &admission_);
    ASSERT_TRUE(runner.ok()) << runner.status();
    runner_ = *std::move(runner);
    channel_ = ConnectedTo(runner_->address());
  }
  ServerReflectionResponse Answer(const ServerReflectionRequest& request,
                                  const char* method = kV1) {
    Conversation conversation(channel_, method);
    ServerReflectionResponse answer;
    EXPECT_TRUE(conversation.Ask(request, &answer));
    const grpc::Status status = conversation.Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return answer;
  }

  Admission admission_;
  v1::Inference::Service service_;
  std::unique_ptr<ServerRunner> runner_;
  std::shared_ptr<grpc::Channel> channel_;
};

std::set<std::string> Names(const ServerReflectionResponse& answer) {
  std::set<std::string> names;
  for (const auto& service : answer.list_services_response().service()) {
    names.insert(service.name());
  }
  return names;
}

TEST_F(ReflectionServiceTest, ListsTheServicesThatV1AlphaLists) {
  const std::set<std::string> names = Names(Answer(ListServices()));
  EXPECT_THAT(names, Contains("hearth.v1.Inference"));
  EXPECT_THAT(names, Contains(kReflectionName));
  EXPECT_EQ(names, Names(Answer(ListServices(), kV1Alpha)));
}

TEST_F(ReflectionServiceTest, GivesTheFileOfAServiceWithItsImports) {
  const ServerReflectionResponse answer = Answer(FileOf("hearth.v1.Inference"));
  ASSERT_GT(answer.file_descriptor_response().file_descriptor_proto_size(), 1);
  google::protobuf::FileDescriptorProto file;
  ASSERT_TRUE(file.ParseFromString(answer.file_descriptor_response().file_descriptor_proto(0)));
  EXPECT_EQ(file.package(), "hearth.v1");
  EXPECT_EQ(file.service(0).name(), "Inference");
  EXPECT_EQ(answer.original_request().file_containing_symbol(), "hearth.v1.Inference");
}

TEST_F(ReflectionServiceTest, AnswersEveryKindOfRequestAsV1AlphaDoes) {
  std::vector<ServerReflectionRequest> requests(8);
  requests[0].set_file_by_filename("proto/inference.proto");
  requests[1].set_file_by_filename("no.proto");
  requests[2].set_file_containing_symbol("hearth.v1.Inference.Generate");
  requests[3].set_file_containing_symbol("no.such.Symbol");
  requests[4].mutable_file_containing_extension()->set_containing_type("hearth.v1.Token");
  requests[5].set_all_extension_numbers_of_type("hearth.v1.GenerateRequest");
  requests[6].set_all_extension_numbers_of_type("no.such.Type");
  requests[7].set_host("here");
  for (const ServerReflectionRequest& request : requests) {
    ServerReflectionResponse ours = Answer(request), theirs = Answer(request, kV1Alpha);
    EXPECT_EQ(ours.has_error_response(), theirs.has_error_response());
    for (auto* answer : {&ours, &theirs}) {
      if (answer->has_error_response()) answer->mutable_error_response()->clear_error_message();
    }
    EXPECT_EQ(ours.SerializeAsString(), theirs.SerializeAsString()) << request.DebugString();
  }
}

TEST_F(ReflectionServiceTest, ANameOfAMegabyteIsRefused) {
  Conversation conversation(channel_, kV1);
  ServerReflectionResponse answer;
  EXPECT_FALSE(conversation.Ask(FileOf(std::string(1 << 20, 'a')), &answer));
  const grpc::Status status = conversation.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("limit is 65536"));
}

TEST_F(ReflectionServiceTest, ACallWithoutEndIsEnded) {
  Conversation conversation(channel_, kV1);
  ServerReflectionResponse answer;
  int answers = 0;
  while (answers < 2 * kMaxReflectionRequests && conversation.Ask(ListServices(), &answer)) {
    ++answers;
  }
  EXPECT_EQ(answers, kMaxReflectionRequests);
  EXPECT_EQ(conversation.Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_FALSE(Names(Answer(ListServices())).empty());
}

TEST_F(ReflectionServiceTest, TheOldestCallMakesRoomForOneMore) {
  ServerReflectionResponse answer;
  std::vector<std::unique_ptr<Conversation>> open;
  for (size_t i = 0; i < kMaxReflectionStreams + 1; ++i) {
    open.push_back(std::make_unique<Conversation>(channel_, kV1));
    ASSERT_TRUE(open.back()->Ask(ListServices(), &answer)) << i;
  }
  EXPECT_FALSE(open[0]->Ask(ListServices(), &answer));
  EXPECT_EQ(open[0]->Finish().error_code(), grpc::StatusCode::CANCELLED);
  for (size_t i = 1; i < open.size(); ++i) {
    EXPECT_TRUE(open[i]->Ask(ListServices(), &answer)) << i;
    EXPECT_TRUE(open[i]->Finish().ok()) << i;
  }
}

TEST_F(ReflectionServiceTest, AnOpenCallDoesNotKeepAServerFromEnding) {
  Conversation conversation(channel_, kV1);
  ServerReflectionResponse answer;
  ASSERT_TRUE(conversation.Ask(ListServices(), &answer));
  EXPECT_EQ(runner_->Drain(absl::InfiniteDuration(), nullptr), 0);
  runner_.reset();
  EXPECT_FALSE(conversation.Finish().ok());
}

}  // namespace
}  // namespace hearth
