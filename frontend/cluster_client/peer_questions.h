// The two questions that `GrpcQuestions` asks for a frontend: of hierarchy nodes, and of leaves.

#ifndef KVATLAS_FRONTEND_CLUSTER_CLIENT_PEER_QUESTIONS_H_
#define KVATLAS_FRONTEND_CLUSTER_CLIENT_PEER_QUESTIONS_H_

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>
#include <grpcpp/support/status.h>

#include <functional>
#include <utility>

#include "proto/kvatlas/v1/hierarchy.grpc.pb.h"
#include "proto/kvatlas/v1/leaf.grpc.pb.h"

namespace kvatlas {

// The service that is asked, and its messages: for one question, and for a stream of batches.
template <typename S, typename Question, typename Answer, typename Batch, typename BatchAnswer>
struct QuestionTypes {
  using Service = S;
  using Request = Question;
  using Response = Answer;
  using StreamRequest = Batch;
  using StreamResponse = BatchAnswer;
};

struct CellQuestions : QuestionTypes<v1::Hierarchy, v1::FindCellsRequest, v1::FindCellsResponse,
                                     v1::FindCellsStreamRequest, v1::FindCellsStreamResponse> {
  static constexpr char kPeer[] = "hierarchy node";
  static constexpr char kStreamMethod[] = "/kvatlas.v1.Hierarchy/FindCellsStream";

  static void Call(Service::Stub* stub, grpc::ClientContext* context, const Request* request,
                   Response* response, std::function<void(grpc::Status)> callback) {
    stub->async()->FindCells(context, request, response, std::move(callback));
  }
  static void Open(Service::Stub* stub, grpc::ClientContext* context,
                   grpc::ClientBidiReactor<StreamRequest, StreamResponse>* reactor) {
    stub->async()->FindCellsStream(context, reactor);
  }
};

struct OverlapQuestions
    : QuestionTypes<v1::Leaf, v1::FindOverlapsRequest, v1::FindOverlapsResponse,
                    v1::FindOverlapsStreamRequest, v1::FindOverlapsStreamResponse> {
  static constexpr char kPeer[] = "leaf";
  static constexpr char kStreamMethod[] = "/kvatlas.v1.Leaf/FindOverlapsStream";

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

#endif  // KVATLAS_FRONTEND_CLUSTER_CLIENT_PEER_QUESTIONS_H_
