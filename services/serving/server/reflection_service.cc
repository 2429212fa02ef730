#include "services/serving/server/reflection_service.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <cassert>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "services/rpc/request_bytes.h"
#include "services/rpc/slice_wire.h"
#include "services/rpc/status_conversion.h"

namespace hearth {
namespace {

namespace reflection = grpc::reflection::v1;
using google::protobuf::DescriptorPool;
using google::protobuf::FileDescriptor;
using google::protobuf::FileDescriptorProto;

void AnswerError(grpc::StatusCode code, const std::string& text,
                 reflection::ServerReflectionResponse* answer) {
  answer->mutable_error_response()->set_error_code(code);
  answer->mutable_error_response()->set_error_message(text);
}

void AddWithImports(const FileDescriptor& file, absl::flat_hash_set<const FileDescriptor*>* added,
                    reflection::FileDescriptorResponse* answer) {
  if (!added->insert(&file).second) return;
  FileDescriptorProto proto;
  file.CopyTo(&proto);
  proto.SerializeToString(answer->add_file_descriptor_proto());
  for (int i = 0; i < file.dependency_count(); ++i) {
    AddWithImports(*file.dependency(i), added, answer);
  }
}

void AnswerFile(const FileDescriptor* file, reflection::ServerReflectionResponse* answer) {
  if (file == nullptr) {
    return AnswerError(grpc::StatusCode::NOT_FOUND, "no file here has it", answer);
  }
  absl::flat_hash_set<const FileDescriptor*> added;
  AddWithImports(*file, &added, answer->mutable_file_descriptor_response());
}

// None of Hearth's messages has extensions, but those of protobuf may.
const FileDescriptor* FileOfExtension(const DescriptorPool& pool,
                                      const reflection::ExtensionRequest& asked) {
  const auto* type = pool.FindMessageTypeByName(asked.containing_type());
  if (type == nullptr) return nullptr;
  const auto* field = pool.FindExtensionByNumber(type, asked.extension_number());
  return field == nullptr ? nullptr : field->file();
}

void AnswerExtensions(const DescriptorPool& pool, const std::string& name,
                      reflection::ServerReflectionResponse* answer) {
  const auto* type = pool.FindMessageTypeByName(name);
  if (type == nullptr) {
    return AnswerError(grpc::StatusCode::NOT_FOUND, "no message here is called so", answer);
  }
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  pool.FindAllExtensions(type, &fields);
  reflection::ExtensionNumberResponse* extensions =
      answer->mutable_all_extension_numbers_response();
  extensions->set_base_type_name(name);
  for (const auto* field : fields) extensions->add_extension_number(field->number());
}

}  // namespace

// One call.
class ReflectionService::Stream final
    : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Stream(ReflectionService* service, grpc::CallbackServerContext* context)
      : service_(service), context_(context) {
    StartRead(&message_);
  }

  // REQUIRES: not forgotten yet.
  void Cancel() { context_->TryCancel(); }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    if (++requests_ > kMaxReflectionRequests) {
      return Finish({grpc::StatusCode::RESOURCE_EXHAUSTED,
                     absl::StrCat(kMaxReflectionRequests, " requests in one call; begin another")});
    }
    reflection::ServerReflectionRequest asked;
    const absl::Status parsed = ParseSmallMessage(message_, &asked);
    if (!parsed.ok()) return Finish(ToGrpcStatus(parsed));
    message_ = MessageBytes(service_->Answer(asked));
    StartWrite(&message_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    message_.Clear();
    StartRead(&message_);
  }
  void OnDone() override {
    service_->Forget(this);
    delete this;
  }

 private:
  ReflectionService* const service_;
  grpc::CallbackServerContext* const context_;
  grpc::ByteBuffer message_;
  int requests_ = 0;
};

ReflectionService::~ReflectionService() {
  absl::MutexLock lock(&mutex_);
  assert(open_.empty());
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>*
ReflectionService::ServerReflectionInfo(grpc::CallbackServerContext* context) {
  auto* stream = new Stream(this, context);
  absl::MutexLock lock(&mutex_);
  open_.push_back(stream);
  if (open_.size() > kMaxReflectionStreams) {
    open_.front()->Cancel();  // under the mutex, which its end waits for
    open_.pop_front();
  }
  return stream;
}

void ReflectionService::Forget(Stream* stream) {
  absl::MutexLock lock(&mutex_);
  open_.remove(stream);
}

reflection::ServerReflectionResponse ReflectionService::Answer(
    const reflection::ServerReflectionRequest& asked) const {
  reflection::ServerReflectionResponse answer;
  answer.set_valid_host(asked.host());
  *answer.mutable_original_request() = asked;
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  switch (asked.message_request_case()) {
    case reflection::ServerReflectionRequest::kListServices:
      for (const std::string& name : names_) {
        answer.mutable_list_services_response()->add_service()->set_name(name);
      }
      break;
    case reflection::ServerReflectionRequest::kFileByFilename:
      AnswerFile(pool.FindFileByName(asked.file_by_filename()), &answer);
      break;
    case reflection::ServerReflectionRequest::kFileContainingSymbol:
      AnswerFile(pool.FindFileContainingSymbol(asked.file_containing_symbol()), &answer);
      break;
    case reflection::ServerReflectionRequest::kFileContainingExtension:
      AnswerFile(FileOfExtension(pool, asked.file_containing_extension()), &answer);
      break;
    case reflection::ServerReflectionRequest::kAllExtensionNumbersOfType:
      AnswerExtensions(pool, asked.all_extension_numbers_of_type(), &answer);
      break;
    case reflection::ServerReflectionRequest::MESSAGE_REQUEST_NOT_SET:
      AnswerError(grpc::StatusCode::UNIMPLEMENTED, "asks for nothing that is known", &answer);
      break;
  }
  return answer;
}

}  // namespace hearth
