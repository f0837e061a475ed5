package gateway

// Convention says how a proxy tells of the request that it asks about: the headers
// that hold its method, its URI (a path with query, or an absolute URI) and its
// host. Where a name is "" it is that of the asking request itself. Only these
// headers are read: what another proxy would set, a client can set as well.
//
// The functions that return a Convention say how the proxy is set up: [Nginx],
// [IngressNginx], [Forwarded] (Traefik, Caddy, APISIX) and [Envoy]. Their lines are
// complete in what matters here, and have in common that
//
//   - the proxy sends the client's headers, or those of them that rules read, and
//     Cookie and Baggage in any case;
//   - X-Gray-Tag, Baggage and X-Gray-Trace of the answer replace what the client
//     sent, also where they are empty; and so do the headers of the compatibility
//     formats, where [WithPropagator] has some: add them to each list;
//   - X-Version, X-Canary-Group and Set-Cookie of the answer go to the client, where
//     the proxy can do that;
//   - the proxy is named in [grayhttp.WithTrustedProxies].
//
// The lines for nginx are what the tests of this package run. Those for Caddy were
// seen to work with 2.6.2 and 2.11.9; the others follow what Traefik, APISIX,
// ingress-nginx and Envoy document: look at what arrives before you rely on them.
//
// A service behind such a proxy that calls further services is wrapped in
// [grayhttp.Middleware], as any other: the tag is in its header.
type Convention struct {
	Method string
	URI    string
	Host   string
	// PathPrefix is taken off the path of the asking request, where URI is "".
	PathPrefix string
	// Remove lists, in X-Envoy-Auth-Headers-To-Remove of the answer, the headers
	// that must not go on.
	Remove bool
}

// Nginx is the convention of nginx's auth_request: X-Original-Method,
// X-Original-URI, and the Host of the client. With upstreams named graylane (where
// [ForwardAuth] listens) and shop, in a server:
//
//	location = /_graylane {
//	    internal;
//	    proxy_pass http://graylane;
//	    proxy_http_version 1.1;
//	    proxy_set_header Connection "";
//	    proxy_pass_request_body off;
//	    proxy_set_header Content-Length "";
//	    proxy_set_header Host $host;
//	    proxy_set_header X-Original-Method $request_method;
//	    proxy_set_header X-Original-URI $request_uri;
//	    proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
//	    proxy_set_header X-Forwarded-Proto $scheme;
//	    # Room for the baggage of a client, which comes back.
//	    proxy_buffer_size 64k;
//	    proxy_buffers 4 64k;
//	    # Whatever happens to graylane, the request goes on, as a stable one.
//	    proxy_connect_timeout 1s;
//	    proxy_read_timeout 1s;
//	    proxy_intercept_errors on;
//	    error_page 400 431 500 502 503 504 = @graylane_away;
//	}
//	location @graylane_away {
//	    return 204;
//	}
//	location / {
//	    auth_request /_graylane;
//	    auth_request_set $gray_tag $upstream_http_x_gray_tag;
//	    auth_request_set $gray_baggage $upstream_http_baggage;
//	    auth_request_set $gray_version $upstream_http_x_version;
//	    auth_request_set $gray_group $upstream_http_x_canary_group;
//	    auth_request_set $gray_cookie $upstream_http_set_cookie;
//
//	    proxy_pass http://shop;
//	    # An empty value takes the client's header away.
//	    proxy_set_header X-Gray-Tag $gray_tag;
//	    proxy_set_header Baggage $gray_baggage;
//	    proxy_set_header X-Gray-Trace "";
//
//	    proxy_hide_header X-Version;
//	    proxy_hide_header X-Canary-Group;
//	    add_header X-Version $gray_version always;
//	    add_header X-Canary-Group $gray_group always;
//	    add_header Set-Cookie $gray_cookie always;
//	}
//
// A location that has a proxy_set_header or an add_header of its own inherits none
// from outside: all of them belong into each location that asks. While graylane is
// away the client's baggage goes as well: nobody has looked at it.
func Nginx() Convention {
	return Convention{Method: "X-Original-Method", URI: "X-Original-URI"}
}

// IngressNginx is the convention of the nginx of Kubernetes (ingress-nginx):
// X-Original-Method and X-Original-URL, an absolute URL, whose scheme counts as
// X-Forwarded-Proto. At the Ingress:
//
//	nginx.ingress.kubernetes.io/auth-url: http://graylane.default.svc.cluster.local:8081/
//	nginx.ingress.kubernetes.io/auth-response-headers: X-Gray-Tag,Baggage,X-Gray-Trace
//
// Set-Cookie goes to the client by itself. X-Version does where snippets are
// allowed:
//
//	nginx.ingress.kubernetes.io/configuration-snippet: |
//	  auth_request_set $gray_version $upstream_http_x_version;
//	  add_header X-Version $gray_version always;
//
// Without graylane the ingress answers with 500.
func IngressNginx() Convention {
	return Convention{Method: "X-Original-Method", URI: "X-Original-URL"}
}

// Forwarded is the convention of Traefik's forwardAuth, Caddy's forward_auth and
// APISIX's forward-auth: X-Forwarded-Method, X-Forwarded-Uri, X-Forwarded-Host. It
// is the default.
//
// Traefik, in its dynamic configuration (addAuthCookiesToResponse from 3.1 on):
//
//	http:
//	  middlewares:
//	    graylane:
//	      forwardAuth:
//	        address: http://graylane:8081/
//	        authResponseHeaders: [X-Gray-Tag, Baggage, X-Gray-Trace]
//	        addAuthCookiesToResponse: [gray_group]
//
// X-Version does not reach the client. Traefik honours a Connection header that
// names X-Gray-Tag: who sends one stays stable. Without graylane it answers with
// 500.
//
// Caddy, in a Caddyfile. Its forward_auth is the same in fewer words, but tells
// the client nothing, and before 2.11.2 leaves a header of the client in place
// where the answer has an empty one:
//
//	route {
//	    reverse_proxy graylane:8081 {
//	        method GET
//	        rewrite /
//	        header_up X-Forwarded-Method {method}
//	        header_up X-Forwarded-Uri {uri}
//	        @decided status 200
//	        handle_response @decided {
//	            request_header X-Gray-Tag {rp.header.X-Gray-Tag}
//	            request_header Baggage {rp.header.Baggage}
//	            request_header X-Gray-Trace {rp.header.X-Gray-Trace}
//	            # A client that names our headers there would take them away.
//	            request_header Connection (?i)x-gray-tag|baggage keep-alive
//	            header X-Version {rp.header.X-Version}
//	            @cookie vars_regexp {rp.header.Set-Cookie} ^gray_group=
//	            header @cookie +Set-Cookie {rp.header.Set-Cookie}
//	        }
//	    }
//	    reverse_proxy shop:8080 {
//	        header_down -X-Version
//	    }
//	}
//
// Without graylane Caddy answers with 502.
//
// APISIX, as a plugin of a route. It sends no header of the client but those that
// are named here, of which Baggage is read to its first line; the client is told
// nothing, and gets no cookie:
//
//	"forward-auth": {
//	    "uri": "http://graylane:8081/",
//	    "request_headers": ["Cookie", "Baggage", "X-User-ID", "X-Channel", "X-Region"],
//	    "upstream_headers": ["X-Gray-Tag", "Baggage", "X-Gray-Trace"]
//	}
//
// Without graylane APISIX answers with 403. Do not set allow_degradation: requests
// would then go on as they came, with a tag that anybody made up.
func Forwarded() Convention {
	return Convention{Method: "X-Forwarded-Method", URI: "X-Forwarded-Uri", Host: "X-Forwarded-Host"}
}

// Envoy is the convention of Envoy's ext_authz filter with an http_service: the
// request itself without its body, its path behind the path_prefix of the filter.
// For Envoy("/graylane"), with a cluster named graylane:
//
//	name: envoy.filters.http.ext_authz
//	typed_config:
//	  "@type": type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthz
//	  allowed_headers:
//	    patterns:
//	    - {exact: cookie}
//	    - {exact: baggage}
//	    - {exact: x-forwarded-for}
//	    - {exact: x-forwarded-proto}
//	    - {exact: x-user-id}
//	    - {exact: x-channel}
//	    - {exact: x-region}
//	  http_service:
//	    path_prefix: /graylane
//	    server_uri: {uri: "http://graylane:8081", cluster: graylane, timeout: 1s}
//	    authorization_response:
//	      allowed_upstream_headers:
//	        patterns:
//	        - {exact: x-gray-tag}
//	        - {exact: baggage}
//	      allowed_client_headers_on_success:
//	        patterns:
//	        - {exact: x-version}
//	        - {exact: x-canary-group}
//	        - {exact: set-cookie}
//
// What must not go on is named in X-Envoy-Auth-Headers-To-Remove of the answer.
// Envoy adds its own address to X-Forwarded-For: it has to be among the trusted
// proxies. Without graylane it answers with 403; do not set failure_mode_allow,
// requests would then go on as they came, with a tag that anybody made up. Routes
// that match on x-gray-tag need clear_route_cache.
func Envoy(pathPrefix string) Convention {
	return Convention{PathPrefix: pathPrefix, Remove: true}
}
