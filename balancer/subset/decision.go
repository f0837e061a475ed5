package subset

// Decision is one routing decision as a balancer tells observers of it. It
// holds no tag: what it holds is safe to log, though versions were chosen by
// whoever sent the request and can be any text of up to 256 bytes.
type Decision struct {
	Service string
	Wanted  string // the version that was wanted, "" for stable
	Served  string // the version that serves, "" for stable, for several and for none
	Outcome Outcome
	Reason  Reason // why the wanted version does not serve, "" where it does
	Address string // host:port of the instance that was chosen, "" where there is none
}
