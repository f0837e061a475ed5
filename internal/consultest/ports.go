package consultest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
)

// ports are what one agent listens on.
type ports struct {
	HTTP    int `json:"http"`
	HTTPS   int `json:"https"` // in place of HTTP
	SerfLAN int `json:"serf_lan"`
	Server  int `json:"server"`
	// -1 switches the others off.
	DNS     int `json:"dns"`
	GRPC    int `json:"grpc"`
	GRPCTLS int `json:"grpc_tls"`
	SerfWAN int `json:"serf_wan"`
}

// Ports are taken below the ranges from which operating systems hand out
// ephemeral ones (32768 on Linux, 49152 elsewhere): while an agent is down, no
// outgoing connection takes the port that it comes back to.
const (
	lowestPort  = 10000
	highestPort = 29999
)

// freePorts picks ports that were free a moment ago. Another process may be
// quicker: whoever starts the agent tries again with others.
func freePorts() (ports, error) {
	p := ports{HTTPS: -1, DNS: -1, GRPC: -1, GRPCTLS: -1, SerfWAN: -1}
	var taken []int
	for _, port := range []*int{&p.HTTP, &p.SerfLAN, &p.Server} {
		n, err := freePort(taken)
		if err != nil {
			return ports{}, err
		}
		*port = n
		taken = append(taken, n)
	}
	return p, nil
}

func freePort(taken []int) (int, error) {
next:
	for range 1000 {
		port := lowestPort + rand.IntN(highestPort-lowestPort+1)
		for _, n := range taken {
			if n == port {
				continue next
			}
		}
		if free(port) {
			return port, nil
		}
	}
	return 0, errors.New("consultest: no free port")
}

// free reports whether nobody listens on the port, TCP and UDP, for Serf uses both.
func free(port int) bool {
	addr := fmt.Sprintf("127.0.0.1:%d", port)
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return false
	}
	l.Close()
	c, err := net.ListenPacket("udp", addr)
	if err != nil {
		return false
	}
	c.Close()
	return true
}
