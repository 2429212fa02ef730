#include "tests/services/inference/scripted_store.h"

#include <cassert>
#include <chrono>

#include "absl/strings/str_cat.h"

namespace hearth {

void ScriptedStore::Start() {
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address_, grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  assert(server_ != nullptr && port != 0);
  address_ = absl::StrCat("127.0.0.1:", port);
}

void ScriptedStore::Stop() {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
  server_.reset();
}

}  // namespace hearth
