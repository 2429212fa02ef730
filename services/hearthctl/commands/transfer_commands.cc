// The command export writes a restore point of a store to a file. The command import publishes the
// restore point of such a file to a store.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/hearthctl/commands.h"
#include "services/hearthctl/json_text.h"
#include "services/hearthctl/mapped_file.h"
#include "services/hearthctl/model_info.h"
#include "services/hearthctl/restore_points.h"
#include "services/hearthctl/snapshot_writer.h"
#include "services/rpc/proto_conversion.h"

namespace hearth {
namespace {

constexpr char kExportExamples[] = R"(  hearthctl export 3fa94c1200aa --out saved.snapshot
The file is self-contained: tokens, model fields, every slice with its digest. The file appears only
when it is complete, and replaces an existing file only with --force.
)";
constexpr char kImportExamples[] =
    R"(  hearthctl import saved.snapshot
  hearthctl import saved.snapshot --worker 127.0.0.1:7070
      (first compares all six parts of the saved state with the model of this worker)
)";

struct TransferFlags {
  PeerFlags store{PeerKind::kStore, "", {}, ""};
  PeerFlags worker;
  std::string id;
  std::string path;
  bool force = false;
  bool json = false;
};

// Returns the manifest of a snapshot file, made from the plan of a fetch. SnapshotWriter validates
// it.
absl::StatusOr<Manifest> ManifestOf(const v1::FetchPlan& plan, const Fingerprint& fingerprint) {
  const v1::InferenceState& state = plan.state();
  Manifest manifest;
  manifest.fingerprint = fingerprint.digest();
  manifest.token_count = state.token_count();
  manifest.next_position = state.next_position();
  manifest.attention_mask = state.attention_mask();
  manifest.token_ids.assign(state.token_ids().begin(), state.token_ids().end());
  manifest.cuts.assign(state.cuts().begin(), state.cuts().end());
  for (const v1::ObjectRef& object : plan.objects()) {
    auto id = ObjectIdFromProto(object);
    if (!id.ok()) return id.status();
    manifest.objects.push_back(
        {*id, {object.slice_digests().begin(), object.slice_digests().end()}});
  }
  return manifest;
}

absl::StatusOr<uint64_t> Export(v1::CacheStore::Stub* store, const TransferFlags& flags,
                                const std::string& id) {
  v1::FetchRequest request;
  request.set_restore_point_id(id);
  request.set_tenant(flags.store.tenant);
  grpc::ClientContext context;
  auto reader = store->Fetch(&context, request);
  const auto abandon = [&](absl::Status status) {
    context.TryCancel();
    reader->Finish();
    return status;
  };
  v1::FetchResponse response;
  if (!reader->Read(&response) || !response.has_plan()) {
    const grpc::Status status = reader->Finish();
    if (!status.ok()) return RpcFailure(status, flags.store);
    return absl::DataLossError(absl::StrCat("store at ", flags.store.address, " sent no plan"));
  }
  auto fingerprint = FromProto(response.plan().state().fingerprint());
  if (!fingerprint.ok()) return abandon(fingerprint.status());
  auto manifest = ManifestOf(response.plan(), *fingerprint);
  if (!manifest.ok()) return abandon(manifest.status());
  auto writer = SnapshotWriter::Create(flags.path, *fingerprint, *manifest, flags.force);
  if (!writer.ok()) return abandon(writer.status());
  while (reader->Read(&response)) {
    const v1::SliceData& slice = response.slice();
    absl::Status status =
        (*writer)->WriteSlice(slice.object(), slice.layer(), slice.offset(), slice.data());
    if (!status.ok()) return abandon(status);
  }
  const grpc::Status status = reader->Finish();
  if (!status.ok()) return RpcFailure(status, flags.store);
  absl::Status committed = (*writer)->Commit();
  if (!committed.ok()) return committed;
  return (*writer)->file_bytes();
}

int RunExport(const TransferFlags& flags, Console& console) {
  const auto channel = Connect(flags.store);
  if (!channel.ok()) return Fail(console, channel.status());
  const auto store = v1::CacheStore::NewStub(*channel);
  const auto id = ResolveId(store.get(), flags.store, flags.id);
  if (!id.ok()) return Fail(console, id.status());
  const auto bytes = Export(store.get(), flags, *id);
  if (!bytes.ok()) return Fail(console, bytes.status());
  if (flags.json) {
    return PrintJson({{"id", HexText(*id)}, {"file", flags.path}, {"bytes", *bytes}}, console);
  }
  console.out << "wrote " << flags.path << ", " << SizeText(*bytes) << std::endl;
  return kExitOk;
}

using PublishStream = grpc::ClientReaderWriter<v1::PublishRequest, v1::PublishResponse>;

v1::PublishRequest BeginOf(const SnapshotHeader& header, const TransferFlags& flags) {
  v1::PublishRequest request;
  v1::PublishBegin* begin = request.mutable_begin();
  ToProto(header.fingerprint, begin->mutable_prefix()->mutable_fingerprint());
  begin->mutable_prefix()->set_tenant(flags.store.tenant);
  const Manifest& manifest = header.manifest;
  for (uint32_t id : manifest.token_ids) begin->mutable_prefix()->add_token_ids(id);
  for (uint32_t cut : manifest.cuts) begin->mutable_prefix()->add_cuts(cut);
  begin->add_boundaries(manifest.token_count);
  for (const ManifestObject& object : manifest.objects) {
    v1::ObjectRef* ref = begin->add_objects();
    ToProto(object.id, ref);
    for (uint64_t digest : object.slice_digests) ref->add_slice_digests(digest);
  }
  return request;
}

// Sends the slices of one object in pieces. Returns false if the stream broke; the stream's Finish
// then returns the reason.
bool SendObject(const SnapshotHeader& header, absl::string_view file, size_t object,
                size_t first_slice, PublishStream* stream) {
  const ObjectId& id = header.manifest.objects[object].id;
  const std::vector<uint32_t> layers = header.layout.LayersOf(id.group);
  const size_t slice_bytes = header.layout.SliceBytes(id.tokens);
  for (size_t i = 0; i < layers.size(); ++i) {
    const absl::string_view slice = file.substr(header.slice_offsets[first_slice + i], slice_bytes);
    for (size_t offset = 0; offset < slice.size(); offset += kMaxSlicePieceBytes) {
      v1::PublishRequest request;
      v1::SliceData* data = request.mutable_slice();
      data->set_object(static_cast<uint32_t>(object));
      data->set_layer(layers[i]);
      data->set_offset(offset);
      data->set_data(std::string(slice.substr(offset, kMaxSlicePieceBytes)));
      if (!stream->Write(request)) return false;
    }
  }
  return true;
}

bool SendNeeded(const SnapshotHeader& header, absl::string_view file, const v1::PublishPlan& plan,
                PublishStream* stream) {
  std::vector<size_t> first_slice;
  size_t slices = 0;
  for (const ManifestObject& object : header.manifest.objects) {
    first_slice.push_back(slices);
    slices += object.slice_digests.size();
  }
  for (uint32_t object : plan.needed()) {
    if (object >= first_slice.size()) return false;
    if (!SendObject(header, file, object, first_slice[object], stream)) return false;
  }
  v1::PublishRequest commit;
  commit.mutable_commit();
  return stream->Write(commit) && stream->WritesDone();
}

absl::StatusOr<v1::PublishAck> Import(v1::CacheStore::Stub* store, const TransferFlags& flags,
                                      const SnapshotHeader& header, absl::string_view file) {
  grpc::ClientContext context;
  auto stream = store->Publish(&context);
  v1::PublishResponse response;
  v1::PublishAck ack;
  bool whole = stream->Write(BeginOf(header, flags)) && stream->Read(&response) &&
               response.has_plan() && SendNeeded(header, file, response.plan(), stream.get()) &&
               stream->Read(&response) && response.has_ack();
  if (whole) {
    ack = response.ack();
    whole = !stream->Read(&response);
  }
  // If the stream broke, it has already ended. Otherwise the store still waits for messages, so end
  // the stream here.
  if (!whole) stream->WritesDone();
  const grpc::Status status = stream->Finish();
  if (!status.ok()) return RpcFailure(status, flags.store);
  if (!whole) {
    return absl::InternalError(
        absl::StrCat("store at ", flags.store.address, " sent messages in a wrong order"));
  }
  for (uint32_t boundary : ack.boundaries()) {
    if (boundary == header.manifest.token_count) return ack;
  }
  return absl::FailedPreconditionError(
      absl::StrCat("store at ", flags.store.address,
                   " did not store the restore point: ", absl::StrJoin(ack.notes(), "; ")));
}

// Checks all six fields of the inference state in the file. Compares them with the worker's model
// if --worker is given, else with the fingerprint in the file.
absl::Status CheckParts(const TransferFlags& flags, const SnapshotHeader& header) {
  if (flags.worker.address.empty()) return CheckRestorable(header, header.fingerprint);
  auto model = GetModel(flags.worker);
  if (!model.ok()) return model.status();
  auto running = FromProto(model->fingerprint());
  if (!running.ok()) return running.status();
  return CheckRestorable(header, *running);
}

int RunImport(const TransferFlags& flags, Console& console) {
  auto file = MappedFile::Open(flags.path);
  if (!file.ok()) return Fail(console, file.status());
  const absl::string_view bytes = (*file)->bytes();
  auto header = ParseSnapshotHeader(bytes);
  absl::Status status = header.ok() ? CheckParts(flags, *header) : header.status();
  if (status.ok()) status = VerifySnapshotFile(bytes);
  if (!status.ok()) return Fail(console, About(flags.path, status));
  const auto channel = Connect(flags.store);
  if (!channel.ok()) return Fail(console, channel.status());
  const auto ack = Import(v1::CacheStore::NewStub(*channel).get(), flags, *header, bytes);
  if (!ack.ok()) return Fail(console, ack.status());
  if (flags.json) {
    return PrintJson({{"file", flags.path},
                      {"published_tokens", header->manifest.token_count},
                      {"durable", DurabilityText(ack->durable())},
                      {"bytes_sent", ack->bytes_received()}},
                     console);
  }
  console.out << "stored " << header->manifest.token_count << " tokens ("
              << DurabilityText(ack->durable()) << "), " << SizeText(ack->bytes_received())
              << " sent" << std::endl;
  return kExitOk;
}

}  // namespace

void AddTransferCommands(CommandLine* line) {
  const auto [command, flags] = line->Add<TransferFlags>(
      "export", "Write a restore point to a file", kExportExamples, RunExport);
  flags->store.Declare(command);
  AddPoint(command, &flags->id)->required();
  command->add_option("--out,-o", flags->path, "the file to write")->required();
  AddForce(command, &flags->force);
  AddJson(command, &flags->json);

  const auto [other, import] = line->Add<TransferFlags>(
      "import", "Store the restore point of a file", kImportExamples, RunImport);
  import->store.Declare(other);
  import->worker.access = import->store.access;
  import->worker.DeclareOptional(other, "compare the file with the model of this worker first");
  other->add_option("file", import->path, "a snapshot file")->required();
  AddJson(other, &import->json);
}

}  // namespace hearth
