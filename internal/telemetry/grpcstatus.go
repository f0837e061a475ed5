package telemetry

// grpcStatuses are the names of the status codes of gRPC, by number
// (https://grpc.io/docs/guides/status-codes/).
var grpcStatuses = [...]string{
	"OK", StatusCanceled, "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
	"PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
	"INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
}

// GRPCStatus returns the status label of a status code of gRPC; codes that it does
// not have are [Other].
func GRPCStatus(code uint32) string {
	if code >= uint32(len(grpcStatuses)) {
		return Other
	}
	return grpcStatuses[code]
}
