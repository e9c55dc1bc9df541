// Requests and answers are written as grpc/reflection/v1/reflection.proto has them, field by field:
// they are few, and generated messages of that name are in gRPC's library already.

#include "indexer/net/grpc_reflection.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/impl/rpc_service_method.h>
#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <memory>
#include <set>
#include <string_view>
#include <utility>

namespace kvatlas {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::FileDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;
using google::protobuf::io::StringOutputStream;

constexpr const char* kMethods[] = {
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"};
constexpr const char* kOwnServices[] = {"grpc.health.v1.Health",
                                        "grpc.reflection.v1.ServerReflection",
                                        "grpc.reflection.v1alpha.ServerReflection"};

// ServerReflectionRequest.message_request, of which the last one counts.
enum Question : int {
  kNone = 0,
  kFileByName = 3,
  kFileOfSymbol = 4,
  kFileOfExtension = 5,
  kExtensionsOfType = 6,
  kListServices = 7,
};
// ServerReflectionResponse.
constexpr int kOriginalRequest = 2, kFiles = 4, kExtensions = 5, kServices = 6, kError = 7;

void Append(int field, std::string_view bytes, std::string* to) {
  StringOutputStream appended(to);
  CodedOutputStream out(&appended);
  out.WriteTag(WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED));
  out.WriteVarint64(bytes.size());
  out.WriteRaw(bytes.data(), static_cast<int>(bytes.size()));
}

std::string ErrorOf(grpc::StatusCode code, std::string_view why) {
  std::string error = {'\x08', static_cast<char>(code)};  // error_code, of one byte
  Append(2, why, &error);
  return error;
}

// The question and its text; false: no message.
bool Read(const std::string& request, Question* question, std::string* text) {
  CodedInputStream in(reinterpret_cast<const uint8_t*>(request.data()),
                      static_cast<int>(request.size()));
  while (const uint32_t tag = in.ReadTag()) {
    const int field = WireFormatLite::GetTagFieldNumber(tag);
    if (field < kFileByName || field > kListServices ||
        WireFormatLite::GetTagWireType(tag) != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      if (!WireFormatLite::SkipField(&in, tag)) return false;
      continue;
    }
    int size = 0;
    if (!in.ReadVarintSizeAsInt(&size) || !in.ReadString(text, size)) return false;
    *question = static_cast<Question>(field);
  }
  return in.ConsumedEntireMessage();
}

// One stream. Its operations follow each other: read, write, read, …, so it needs no lock.
class Call : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  explicit Call(const std::vector<std::string>* services) : services_(services) {
    StartRead(&request_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    if (request_.Length() > kReflectionBytesMax)
      return Finish({grpc::StatusCode::RESOURCE_EXHAUSTED, "a question of more than 4,096 bytes"});
    grpc::Slice slice;
    std::string request;
    if (request_.DumpToSingleSlice(&slice).ok())
      request.assign(reinterpret_cast<const char*>(slice.begin()), slice.size());
    Question question = kNone;
    std::string text;
    if (!Read(request, &question, &text))
      return Finish({grpc::StatusCode::INVALID_ARGUMENT, "no ServerReflectionRequest"});
    std::string answer;
    Append(kOriginalRequest, request, &answer);
    Answer(question, text, &answer);
    const grpc::Slice bytes(answer);
    response_ = grpc::ByteBuffer(&bytes, 1);
    StartWrite(&response_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::CANCELLED);
    StartRead(&request_);
  }
  void OnDone() override { delete this; }

 private:
  void Answer(Question question, const std::string& text, std::string* answer) {
    const DescriptorPool& pool = *DescriptorPool::generated_pool();
    switch (question) {
      case kListServices: {
        std::string list;
        for (const std::string& name : *services_) {
          std::string service;
          Append(1, name, &service);
          Append(1, service, &list);
        }
        return Append(kServices, list, answer);
      }
      case kFileByName:
        return AnswerFile(pool.FindFileByName(text), text, answer);
      case kFileOfSymbol:
        return AnswerFile(pool.FindFileContainingSymbol(text), text, answer);
      case kExtensionsOfType: {
        if (pool.FindMessageTypeByName(text) == nullptr) return NotFound(text, answer);
        std::string none;
        Append(1, text, &none);  // base_type_name
        return Append(kExtensions, none, answer);
      }
      case kFileOfExtension:
        return NotFound("extension", answer);
      case kNone:
        return Append(kError, ErrorOf(grpc::StatusCode::INVALID_ARGUMENT, "no question"), answer);
    }
  }

  static void NotFound(std::string_view what, std::string* answer) {
    Append(kError, ErrorOf(grpc::StatusCode::NOT_FOUND, "not found: " + std::string(what)), answer);
  }

  // The file and all that it imports, those alone that this stream was not told yet.
  void AnswerFile(const FileDescriptor* file, const std::string& name, std::string* answer) {
    if (file == nullptr) return NotFound(name, answer);
    std::string files;
    told_.erase(file);
    AppendFile(*file, &files);
    Append(kFiles, files, answer);
  }
  void AppendFile(const FileDescriptor& file, std::string* files) {
    if (!told_.insert(&file).second) return;
    google::protobuf::FileDescriptorProto proto;
    file.CopyTo(&proto);
    Append(1, proto.SerializeAsString(), files);
    for (int i = 0; i < file.dependency_count(); ++i) AppendFile(*file.dependency(i), files);
  }

  const std::vector<std::string>* const services_;
  grpc::ByteBuffer request_, response_;
  std::set<const FileDescriptor*> told_;
};

class WithoutGrpcsOwn : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    std::erase_if(*plugins,
                  [](const auto& plugin) { return plugin->name() == "proto_server_reflection"; });
  }
};

std::vector<std::string> WithOwn(std::vector<std::string> services) {
  services.insert(services.end(), std::begin(kOwnServices), std::end(kOwnServices));
  return services;
}

}  // namespace

GrpcReflection::GrpcReflection(std::vector<std::string> services)
    : services_(WithOwn(std::move(services))) {
  int index = 0;
  for (const char* method : kMethods) {
    AddMethod(new grpc::internal::RpcServiceMethod(
        method, grpc::internal::RpcMethod::BIDI_STREAMING, nullptr));
    MarkMethodRawCallback(
        index++, new grpc::internal::CallbackBidiHandler<grpc::ByteBuffer, grpc::ByteBuffer>(
                     [this](grpc::CallbackServerContext*) { return new Call(&services_); }));
  }
}

void GrpcReflection::AddTo(grpc::ServerBuilder* builder) {
  builder->SetOption(std::make_unique<WithoutGrpcsOwn>());
  builder->RegisterService(this);
}

}  // namespace kvatlas
