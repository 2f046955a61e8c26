package gateway

import "net/http"

// Headers that open every answer to web pages of any origin, as GRASP-01 asks.
const (
	corsOrigin  = "*"
	corsMethods = "GET, POST, OPTIONS"
	corsHeaders = "Content-Type, Accept, Accept-Encoding, Authorization, Content-Encoding, Git-Protocol, Range, X-Requested-With"
)

// cors sets the headers before next answers, whatever it answers, and answers OPTIONS itself
// with 204.
func cors(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Access-Control-Allow-Origin", corsOrigin)
		h.Set("Access-Control-Allow-Methods", corsMethods)
		h.Set("Access-Control-Allow-Headers", corsHeaders)
		if r.Method == http.MethodOptions {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// corsLines are the headers as lines of an HTTP/1.1 answer, for one that is written by hand.
func corsLines() string {
	return "Access-Control-Allow-Origin: " + corsOrigin + "\r\nAccess-Control-Allow-Methods: " + corsMethods +
		"\r\nAccess-Control-Allow-Headers: " + corsHeaders + "\r\n"
}
