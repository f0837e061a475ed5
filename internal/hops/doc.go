// Package hops gathers the way of one request through the system, where somebody
// who may has asked for it: which service was called, which version was wanted and
// which one answered. Clients begin a [Call] and balancers say whom they chose;
// servers send what their own calls brought back in [RouteHeader].
package hops
