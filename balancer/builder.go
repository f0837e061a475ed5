package balancer

import (
	"encoding/json"
	"time"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/serviceconfig"

	"github.com/graylane/graylane/internal/telemetry"
)

// Name is the name of the policy in a service config.
const Name = "graylane"

func init() { balancer.Register(builder{}) }

type builder struct{}

var (
	_ balancer.Builder      = builder{}
	_ balancer.ConfigParser = builder{}
)

func (builder) Name() string { return Name }

func (builder) Build(cc balancer.ClientConn, opts balancer.BuildOptions) balancer.Balancer {
	telemetry.Unlabel() // a goroutine of gRPC's, from which connections are begun
	return &graylane{
		cc:       cc,
		opts:     opts,
		born:     time.Now(),
		children: make(map[string]*child),
	}
}

func (builder) ParseConfig(js json.RawMessage) (serviceconfig.LoadBalancingConfig, error) {
	c, err := parseConfig(js)
	if err != nil {
		return nil, err // not a nil *config in an interface
	}
	return c, nil
}
