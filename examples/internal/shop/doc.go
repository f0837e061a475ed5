// Package shop holds the gRPC services that the examples call, generated from
// shop.proto.
package shop

//go:generate protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative shop.proto
