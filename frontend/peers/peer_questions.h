// The two questions that `GrpcQuestions` asks for a frontend: of hierarchy nodes, and of leaves.

#ifndef KVATLAS_FRONTEND_PEERS_PEER_QUESTIONS_H_
#define KVATLAS_FRONTEND_PEERS_PEER_QUESTIONS_H_

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>
#include <grpcpp/support/status.h>

#include <functional>
#include <utility>

#include "proto/kvatlas/v1/hierarchy.grpc.pb.h"
#include "proto/kvatlas/v1/leaf.grpc.pb.h"

namespace kvatlas {

struct CellQuestions {
  static constexpr char kPeer[] = "hierarchy node";
  static constexpr char kStreamMethod[] = "/kvatlas.v1.Hierarchy/FindCellsStream";
  using Service = v1::Hierarchy;
  using Request = v1::FindCellsRequest;
  using Response = v1::FindCellsResponse;
  using StreamRequest = v1::FindCellsStreamRequest;
  using StreamResponse = v1::FindCellsStreamResponse;

  static void Call(Service::Stub* stub, grpc::ClientContext* context, const Request* request,
                   Response* response, std::function<void(grpc::Status)> callback) {
    stub->async()->FindCells(context, request, response, std::move(callback));
  }
  static void Open(Service::Stub* stub, grpc::ClientContext* context,
                   grpc::ClientBidiReactor<StreamRequest, StreamResponse>* reactor) {
    stub->async()->FindCellsStream(context, reactor);
  }
};

struct OverlapQuestions {
  static constexpr char kPeer[] = "leaf";
  static constexpr char kStreamMethod[] = "/kvatlas.v1.Leaf/FindOverlapsStream";
  using Service = v1::Leaf;
  using Request = v1::FindOverlapsRequest;
  using Response = v1::FindOverlapsResponse;
  using StreamRequest = v1::FindOverlapsStreamRequest;
  using StreamResponse = v1::FindOverlapsStreamResponse;

  static void Call(Service::Stub* stub, grpc::ClientContext* context, const Request* request,
                   Response* response, std::function<void(grpc::Status)> callback) {
    stub->async()->FindOverlaps(context, request, response, std::move(callback));
  }
  static void Open(Service::Stub* stub, grpc::ClientContext* context,
                   grpc::ClientBidiReactor<StreamRequest, StreamResponse>* reactor) {
    stub->async()->FindOverlapsStream(context, reactor);
  }
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PEERS_PEER_QUESTIONS_H_
