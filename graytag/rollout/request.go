package rollout

import "time"

// Request is what became of one request, as a gateway or a client saw it. The
// fields are those of Exchange of package middleware/gateway.
type Request struct {
	Service string
	// Wanted is the version that the request wanted and Served that of the instance
	// which it went to; "" is stable.
	Wanted, Served string
	// Outcome is that of the routing decision. With "unavailable" nothing served;
	// with "" there was no decision, and the request is left out.
	Outcome string
	// Status is the status of HTTP that was answered, 0 for none.
	Status int
	// GRPCStatus is the status code of gRPC; -1, or 0, where there is none.
	GRPCStatus int
	Duration   time.Duration
	// Canceled tells that the client hung up.
	Canceled bool
	// Err is why there is no answer, or not all of it.
	Err error
}

const (
	outcomeUnavailable = "unavailable" // subset.Unavailable
	statusClientClosed = 499           // what nginx and others made of a client that is gone
	grpcCanceled       = 1
)

// leftOut tells that the request says nothing about the version: nobody waited for
// the answer, or it went nowhere by the fault of the client. To count it as good
// would let a version pass that is so slow that all clients give up.
func (q *Request) leftOut() bool {
	return q.Outcome == "" || q.Canceled || q.Status == statusClientClosed || q.GRPCStatus == grpcCanceled
}

func (q *Request) served() string {
	if q.Outcome == outcomeUnavailable {
		return ServedNone
	}
	return q.Served
}

// failed tells whether it is the fault of a server. An error beside a status 4xx is
// about the client: a body that is too long, or that did not come.
func (q *Request) failed() bool {
	switch q.GRPCStatus {
	case 2, 4, 12, 13, 14, 15: // Unknown, DeadlineExceeded, Unimplemented, Internal, Unavailable, DataLoss
		return true
	}
	return q.Status == 0 || q.Status >= 500 || q.Err != nil && q.Status < 400 || q.Outcome == outcomeUnavailable
}
