// Package cors opens every answer to web pages of any origin, as GRASP-01 asks.
package cors

import "net/http"

// Values of the headers, on all answers. GRASP-01 names the methods and Content-Type; the other request headers are what git clients
// in browsers send (spec/purgatory.md, Git over HTTP).
const (
	origin  = "*"
	methods = "GET, POST"
	headers = "Content-Type, Accept, Accept-Encoding, Authorization, Content-Encoding, Git-Protocol, Range"
)

// Handler sets the headers before next answers, whatever it answers, and answers OPTIONS itself with 204.
func Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Access-Control-Allow-Origin", origin)
		h.Set("Access-Control-Allow-Methods", methods)
		h.Set("Access-Control-Allow-Headers", headers)
		if r.Method == http.MethodOptions {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Forget takes the headers away from an answer that is passed on from elsewhere: twice they would mean nothing to a browser.
func Forget(h http.Header) {
	for _, name := range []string{"Access-Control-Allow-Origin", "Access-Control-Allow-Methods", "Access-Control-Allow-Headers"} {
		h.Del(name)
	}
}
