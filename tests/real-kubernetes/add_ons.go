// What stands in for CoreDNS and metrics-server, of which Debian has neither: one file that runs as whichever it was called as. Both are far
// smaller than what they stand in for, but do for real what the manifests of image-build/addons have to allow and to bring: they show the API
// their service account, watch what the real ones watch, read the flags and the Corefile, and serve where probes and services look for them.
// Built inside Kubernetes' own tree by up.sh, of the libraries that the real ones are made of.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io/ioutil"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/coredns/corefile-migration/migration"
	"github.com/coredns/corefile-migration/migration/corefile"
	"github.com/miekg/dns"
	"github.com/prometheus/common/expfmt"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/logs"
	metrics "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// The newest release whose plugins and options the tree's own table has.
const corednsOfTable = "1.7.0"

func main() {
	logs.InitLogs()
	programs := map[string]*cobra.Command{"coredns": coredns(), "metrics-server": metricsServer()}
	command, known := programs[filepath.Base(os.Args[0])]
	if !known {
		fmt.Fprintf(os.Stderr, "%s: no program of this name is in this file\n", os.Args[0])
		os.Exit(64)
	}
	command.SilenceUsage = true
	if command.Execute() != nil {
		os.Exit(1)
	}
}

// The API as a pod's account sees it, and watches of it that begin together.
func inCluster() (*rest.Config, informers.SharedInformerFactory, error) {
	config, err := rest.InClusterConfig()
	if err != nil {
		return nil, nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, err
	}
	return config, informers.NewSharedInformerFactory(client, 0), nil
}

// --- CoreDNS ---

// names answers for services and pods of the cluster; what it does not know of other names it asks the node's servers.
type names struct {
	zones     []string
	pods      bool
	services  listers.ServiceLister
	endpoints listers.EndpointsLister
	upstream  []string
}

func coredns() *cobra.Command {
	// CoreDNS has Go's own flags, with one dash.
	return &cobra.Command{Use: "coredns", DisableFlagParsing: true, RunE: func(_ *cobra.Command, words []string) error {
		if len(words) != 2 || words[0] != "-conf" {
			return fmt.Errorf("of CoreDNS's flags this has -conf alone, and was given %q", words)
		}
		return serveNames(words[1])
	}}
}

func serveNames(conf string) error {
	text, err := ioutil.ReadFile(conf)
	if err != nil {
		return err
	}
	notices, err := migration.Unsupported(corednsOfTable, corednsOfTable, string(text))
	if err != nil {
		return fmt.Errorf("%s: %v", conf, err)
	}
	for _, notice := range notices {
		return fmt.Errorf("%s: CoreDNS %s does not know this: %s", conf, corednsOfTable, notice.ToString())
	}
	parsed, err := corefile.New(string(text))
	if err != nil {
		return err
	}
	if len(parsed.Servers) != 1 || strings.Join(parsed.Servers[0].DomPorts, " ") != ".:53" {
		return fmt.Errorf("%s: this serves one block, .:53", conf)
	}
	_, factory, err := inCluster()
	if err != nil {
		return err
	}
	core := factory.Core().V1()
	all := &names{services: core.Services().Lister(), endpoints: core.Endpoints().Lister()}
	synced := []cache.InformerSynced{
		core.Services().Informer().HasSynced, core.Endpoints().Informer().HasSynced, core.Namespaces().Informer().HasSynced,
		core.Pods().Informer().HasSynced, factory.Discovery().V1beta1().EndpointSlices().Informer().HasSynced,
	}
	ready, failed := make(chan struct{}), make(chan error)
	serve := func(address string, path string, handle http.HandlerFunc) {
		mux := http.NewServeMux()
		mux.HandleFunc(path, handle)
		go func() { failed <- http.ListenAndServe(address, mux) }()
	}
	for _, plugin := range parsed.Servers[0].Plugins {
		switch plugin.Name {
		case "kubernetes":
			for _, zone := range plugin.Args {
				all.zones = append(all.zones, dns.Fqdn(zone))
			}
			for _, option := range plugin.Options {
				all.pods = all.pods || option.Name == "pods" && strings.Join(option.Args, " ") == "insecure"
			}
		case "forward":
			config, err := dns.ClientConfigFromFile("/etc/resolv.conf")
			if err != nil {
				return err
			}
			for _, server := range config.Servers {
				all.upstream = append(all.upstream, net.JoinHostPort(server, config.Port))
			}
		case "health":
			serve(":8080", "/health", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "OK") })
		case "ready":
			serve(":8181", "/ready", func(w http.ResponseWriter, _ *http.Request) {
				select {
				case <-ready:
					fmt.Fprint(w, "OK")
				default:
					http.Error(w, "kubernetes", http.StatusServiceUnavailable)
				}
			})
		case "prometheus":
			serve(plugin.Args[0], "/metrics", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "coredns_build_info 1") })
		}
	}
	if len(all.zones) == 0 {
		return fmt.Errorf("%s: no zone of the cluster", conf)
	}
	for _, network := range []string{"udp", "tcp"} {
		server := &dns.Server{Addr: ":53", Net: network, Handler: all}
		go func() { failed <- server.ListenAndServe() }()
	}
	factory.Start(nil)
	go func() {
		if cache.WaitForCacheSync(nil, synced...) {
			fmt.Println("every watch has begun; zones:", all.zones)
			close(ready)
		}
	}()
	return <-failed
}

func (n *names) ServeDNS(w dns.ResponseWriter, asked *dns.Msg) {
	answer := new(dns.Msg)
	answer.SetReply(asked)
	question := asked.Question[0]
	name := strings.ToLower(question.Name)
	isOurs := false
	for _, zone := range n.zones {
		isOurs = isOurs || dns.IsSubDomain(zone, name)
	}
	switch records, exists := n.find(name, question.Qtype); {
	case exists:
		answer.Authoritative, answer.Answer = true, records
	case isOurs && !dns.IsSubDomain("in-addr.arpa.", name):
		answer.Authoritative = true
		answer.SetRcode(asked, dns.RcodeNameError)
	default:
		answer.SetRcode(asked, dns.RcodeServerFailure)
		for _, server := range n.upstream {
			if said, _, err := new(dns.Client).Exchange(asked, server); err == nil {
				answer = said
				break
			}
		}
	}
	_ = w.WriteMsg(answer)
}

// As long a chain of names as this is followed: one of services may go round in a circle.
const aliases = 8

// find follows a name that stands for another of the cluster's.
func (n *names) find(name string, kind uint16) (records []dns.RR, exists bool) {
	for i := 0; i < aliases; i++ {
		found, known := n.own(name, kind)
		records, exists = append(records, found...), exists || known
		if len(found) != 1 || kind == dns.TypeCNAME {
			break
		}
		alias, is := found[0].(*dns.CNAME)
		if !is {
			break
		}
		name = alias.Target
	}
	return records, exists
}

// own has services, their ports, the pods behind those without an address of their own, and, where the Corefile says so, pods by their addresses.
func (n *names) own(name string, kind uint16) ([]dns.RR, bool) {
	zone := n.zones[0]
	header := dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET, Ttl: 30}
	if !dns.IsSubDomain(zone, name) {
		return n.reverse(name, header)
	}
	words := dns.SplitDomainName(strings.TrimSuffix(name, zone))
	if len(words) < 3 {
		return nil, false
	}
	words, namespace, under := words[:len(words)-2], words[len(words)-2], words[len(words)-1]
	if under == "pod" && n.pods && len(words) == 1 {
		address := net.ParseIP(strings.Replace(words[0], "-", ".", -1))
		return addresses(header, address), address != nil
	}
	words, serviceName := words[:len(words)-1], words[len(words)-1]
	service, err := n.services.Services(namespace).Get(serviceName)
	if err != nil || under != "svc" {
		return nil, false
	}
	of := fmt.Sprintf("%s.%s.svc.%s", serviceName, namespace, zone)
	switch {
	case len(words) == 0 && service.Spec.Type == corev1.ServiceTypeExternalName:
		header.Rrtype = dns.TypeCNAME
		return []dns.RR{&dns.CNAME{Hdr: header, Target: dns.Fqdn(service.Spec.ExternalName)}}, true
	case len(words) == 0 && service.Spec.ClusterIP != corev1.ClusterIPNone:
		return addresses(header, net.ParseIP(service.Spec.ClusterIP)), true
	case len(words) == 2:
		return n.ports(service, of, header, words[0], words[1])
	}
	// Of a service without an address all pods, or the one that has this name in it.
	var found []net.IP
	for _, one := range n.behind(service) {
		if len(words) == 0 || words[0] == nameOf(one.EndpointAddress) {
			found = append(found, net.ParseIP(one.IP))
		}
	}
	return addresses(header, found...), len(words) == 0 || len(found) > 0
}

// ports is who serves one, by its name and protocol: the service, or each pod of one without an address.
func (n *names) ports(service *corev1.Service, of string, header dns.RR_Header, name, protocol string) (records []dns.RR, exists bool) {
	add := func(port int32, target string) {
		exists = true
		if header.Rrtype == dns.TypeSRV {
			records = append(records, &dns.SRV{Hdr: header, Priority: 0, Weight: 100, Port: uint16(port), Target: target})
		}
	}
	is := func(itsName string, its corev1.Protocol) bool {
		return name == "_"+itsName && protocol == "_"+strings.ToLower(string(its))
	}
	if service.Spec.ClusterIP != corev1.ClusterIPNone {
		for _, port := range service.Spec.Ports {
			if is(port.Name, port.Protocol) {
				add(port.Port, of)
			}
		}
		return records, exists
	}
	for _, one := range n.behind(service) {
		for _, port := range one.ports {
			if is(port.Name, port.Protocol) {
				add(port.Port, nameOf(one.EndpointAddress)+"."+of)
			}
		}
	}
	return records, exists
}

// reverse has the names of services' addresses, and of pods that have a name in a service.
func (n *names) reverse(name string, header dns.RR_Header) ([]dns.RR, bool) {
	is := func(address string) bool {
		reverse, err := dns.ReverseAddr(address)
		return err == nil && reverse == name
	}
	all, err := n.services.List(labels.Everything())
	if err != nil {
		return nil, false
	}
	for _, service := range all {
		of := fmt.Sprintf("%s.%s.svc.%s", service.Name, service.Namespace, n.zones[0])
		if is(service.Spec.ClusterIP) {
			return []dns.RR{&dns.PTR{Hdr: header, Ptr: of}}, true
		}
		for _, one := range n.behind(service) {
			if one.Hostname != "" && is(one.IP) {
				return []dns.RR{&dns.PTR{Hdr: header, Ptr: one.Hostname + "." + of}}, true
			}
		}
	}
	return nil, false
}

// endpoint is one pod behind a service, and what it serves there.
type endpoint struct {
	corev1.EndpointAddress
	ports []corev1.EndpointPort
}

func (n *names) behind(service *corev1.Service) (found []endpoint) {
	all, err := n.endpoints.Endpoints(service.Namespace).Get(service.Name)
	if err != nil {
		return nil
	}
	for _, subset := range all.Subsets {
		for _, address := range subset.Addresses {
			found = append(found, endpoint{address, subset.Ports})
		}
	}
	return found
}

// nameOf is the pod's own in its service, or one of its address.
func nameOf(address corev1.EndpointAddress) string {
	if address.Hostname != "" {
		return address.Hostname
	}
	return strings.Replace(address.IP, ".", "-", -1)
}

func addresses(header dns.RR_Header, all ...net.IP) (records []dns.RR) {
	for _, one := range all {
		if header.Rrtype == dns.TypeA {
			records = append(records, &dns.A{Hdr: header, A: one})
		}
	}
	return records
}

// --- metrics-server ---

// usage is what kubelets say of their nodes: the memory of the last time, the processor's time of the last two.
type usage struct {
	sync.Mutex
	flags       kubeletFlags
	nodes       listers.NodeLister
	transport   http.RoundTripper
	cpu, before map[string]float64
	memory      map[string]float64
	at, earlier time.Time
	lastError   error
}

type kubeletFlags struct {
	addressTypes        []string
	ca           string
	usePortOfNode       bool
	port                int
	resolution, timeout time.Duration
}

// As metrics-server v0.6 has them, beside those of the library.
func (f *kubeletFlags) add(flags *pflag.FlagSet) {
	flags.StringSliceVar(&f.addressTypes, "kubelet-preferred-address-types", []string{"Hostname", "InternalDNS", "InternalIP", "ExternalDNS", "ExternalIP"}, "")
	flags.StringVar(&f.ca, "kubelet-certificate-authority", "", "")
	flags.BoolVar(&f.usePortOfNode, "kubelet-use-node-status-port", false, "")
	flags.DurationVar(&f.resolution, "metric-resolution", time.Minute, "")
	flags.IntVar(&f.port, "kubelet-port", 10250, "")
	flags.DurationVar(&f.timeout, "kubelet-request-timeout", 10*time.Second, "")
}

func metricsServer() *cobra.Command {
	var own kubeletFlags
	secure := options.NewSecureServingOptions().WithLoopback()
	authentication, authorization := options.NewDelegatingAuthenticationOptions(), options.NewDelegatingAuthorizationOptions()
	command := &cobra.Command{Use: "metrics-server", RunE: func(*cobra.Command, []string) error {
		return serveMetrics(own, secure, authentication, authorization)
	}}
	own.add(command.Flags())
	secure.AddFlags(command.Flags())
	authentication.AddFlags(command.Flags())
	authorization.AddFlags(command.Flags())
	return command
}

func serveMetrics(own kubeletFlags, secure *options.SecureServingOptionsWithLoopback, authentication *options.DelegatingAuthenticationOptions,
	authorization *options.DelegatingAuthorizationOptions) error {
	if own.resolution < 10*time.Second {
		return fmt.Errorf("--metric-resolution must be 10 s at least")
	}
	config, factory, err := inCluster()
	if err != nil {
		return err
	}
	ofKubelets := rest.CopyConfig(config)
	ofKubelets.TLSClientConfig = rest.TLSClientConfig{CAFile: own.ca}
	transport, err := rest.TransportFor(ofKubelets)
	if err != nil {
		return err
	}
	used := &usage{flags: own, nodes: factory.Core().V1().Nodes().Lister(), transport: transport}
	synced := []cache.InformerSynced{factory.Core().V1().Nodes().Informer().HasSynced, factory.Core().V1().Pods().Informer().HasSynced}

	if err := secure.MaybeDefaultWithSelfSignedCerts("localhost", nil, []net.IP{net.ParseIP("127.0.0.1")}); err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	server := genericapiserver.NewConfig(serializer.NewCodecFactory(scheme))
	if err := secure.ApplyTo(&server.SecureServing, &server.LoopbackClientConfig); err != nil {
		return err
	}
	if err := authentication.ApplyTo(&server.Authentication, server.SecureServing, nil); err != nil {
		return err
	}
	if err := authorization.ApplyTo(&server.Authorization); err != nil {
		return err
	}
	server.ReadyzChecks = append(server.ReadyzChecks, healthz.NamedCheck("metric-storage-ready", used.ready))
	api, err := server.Complete(nil).New("metrics-server", genericapiserver.NewEmptyDelegate())
	if err != nil {
		return err
	}
	version := "/apis/metrics.k8s.io/v1beta1"
	api.Handler.NonGoRestfulMux.HandleFunc(version, func(w http.ResponseWriter, _ *http.Request) {
		say(w, metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "metrics.k8s.io/v1beta1",
			APIResources: []metav1.APIResource{{Name: "nodes", Kind: "NodeMetrics", Verbs: metav1.Verbs{"list"}}}})
	})
	api.Handler.NonGoRestfulMux.HandleFunc(version+"/nodes", func(w http.ResponseWriter, _ *http.Request) { say(w, used.list()) })
	factory.Start(nil)
	go func() {
		cache.WaitForCacheSync(nil, synced...)
		for {
			used.scrape()
			time.Sleep(own.resolution)
		}
	}()
	return api.PrepareRun().Run(make(chan struct{}))
}

func say(w http.ResponseWriter, what interface{}) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(what)
}

// Asks every kubelet once.
func (u *usage) scrape() {
	cpu, memory := map[string]float64{}, map[string]float64{}
	nodes, err := u.nodes.List(labels.Everything())
	for _, node := range nodes {
		if asked := u.ask(node, cpu, memory); asked != nil {
			fmt.Fprintf(os.Stderr, "node %s: %v\n", node.Name, asked)
			err = asked
		}
	}
	u.Lock()
	defer u.Unlock()
	u.before, u.earlier, u.lastError = u.cpu, u.at, err
	u.cpu, u.memory, u.at = cpu, memory, time.Now()
}

func (u *usage) ask(node *corev1.Node, cpu, memory map[string]float64) error {
	port := u.flags.port
	if u.flags.usePortOfNode {
		port = int(node.Status.DaemonEndpoints.KubeletEndpoint.Port)
	}
	host := ""
	for _, wanted := range u.flags.addressTypes {
		for _, address := range node.Status.Addresses {
			if host == "" && string(address.Type) == wanted {
				host = address.Address
			}
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), u.flags.timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, "GET", fmt.Sprintf("https://%s/metrics/resource", net.JoinHostPort(host, fmt.Sprint(port))), nil)
	if err != nil {
		return err
	}
	answer, err := (&http.Client{Transport: u.transport}).Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("the kubelet answers %s", answer.Status)
	}
	families, err := new(expfmt.TextParser).TextToMetricFamilies(answer.Body)
	if err != nil {
		return err
	}
	for name, values := range map[string]map[string]float64{"node_cpu_usage_seconds_total": cpu, "node_memory_working_set_bytes": memory} {
		if families[name] == nil {
			return fmt.Errorf("the kubelet does not say %s", name)
		}
		one := families[name].Metric[0]
		values[node.Name] = one.GetCounter().GetValue() + one.GetGauge().GetValue()
	}
	return nil
}

// Two rounds, the last of which every kubelet answered: this is stricter than the real one, which is content with some.
func (u *usage) ready(*http.Request) error {
	u.Lock()
	defer u.Unlock()
	if u.lastError == nil && len(u.before) == 0 {
		return fmt.Errorf("no metrics yet")
	}
	return u.lastError
}

func (u *usage) list() metrics.NodeMetricsList {
	u.Lock()
	defer u.Unlock()
	window := u.at.Sub(u.earlier)
	list := metrics.NodeMetricsList{TypeMeta: metav1.TypeMeta{Kind: "NodeMetricsList", APIVersion: "metrics.k8s.io/v1beta1"}}
	for name, memory := range u.memory {
		cpu := (u.cpu[name] - u.before[name]) / window.Seconds()
		list.Items = append(list.Items, metrics.NodeMetrics{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Timestamp: metav1.NewTime(u.at), Window: metav1.Duration{Duration: window},
			Usage: corev1.ResourceList{
				corev1.ResourceCPU:    *resource.NewMilliQuantity(int64(cpu*1000)+1, resource.DecimalSI),
				corev1.ResourceMemory: *resource.NewQuantity(int64(memory), resource.BinarySI),
			}})
	}
	return list
}
