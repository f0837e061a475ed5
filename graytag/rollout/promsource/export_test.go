package promsource

import "github.com/graylane/graylane/graytag/rollout"

// Read makes samples of the answers to the queries.
func Read(status int, requests, latency, unserved []byte) ([]rollout.Sample, error) {
	var rows [3][]row
	for i, body := range [][]byte{requests, latency, unserved} {
		var err error
		if rows[i], err = parse(status, body); err != nil {
			return nil, err
		}
	}
	return samples(rows[0], rows[1], rows[2])
}
