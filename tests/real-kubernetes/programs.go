// One file with the names of all of Kubernetes' programs on a node, and kubectl: it runs as whichever it was called as. They share
// nearly all of their code, so that one link takes the time and the space of one. Built inside Kubernetes' own tree by up.sh.
package main

import (
	"flag"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	_ "k8s.io/client-go/plugin/pkg/client/auth"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// Each program's command, and which of the process's own flags its main() gives it: those of package pflag in one way of writing, and
// those of package flag.
var programs = map[string]struct {
	command            func() *cobra.Command
	normalize, goFlags bool
}{
	"kube-apiserver":          {func() *cobra.Command { return apiserver.NewAPIServerCommand() }, false, false},
	"kube-controller-manager": {func() *cobra.Command { return controllers.NewControllerManagerCommand() }, false, false},
	"kube-scheduler":          {func() *cobra.Command { return scheduler.NewSchedulerCommand() }, true, false},
	"kubelet":                 {func() *cobra.Command { return kubelet.NewKubeletCommand() }, false, false},
	"kube-proxy":              {func() *cobra.Command { return proxy.NewProxyCommand() }, true, true},
	"kubectl":                 {func() *cobra.Command { return kubectl.NewDefaultKubectlCommand() }, true, true},
}

func main() {
	rand.Seed(time.Now().UnixNano())
	name := filepath.Base(os.Args[0])
	program, known := programs[name]
	if !known {
		fmt.Fprintf(os.Stderr, "%s: no program of this name is in this file\n", name)
		os.Exit(64)
	}
	command := program.command()
	if program.normalize {
		pflag.CommandLine.SetNormalizeFunc(cliflag.WordSepNormalizeFunc)
	}
	if program.goFlags {
		pflag.CommandLine.AddGoFlagSet(flag.CommandLine)
	}
	logs.InitLogs()
	err := command.Execute()
	logs.FlushLogs()
	if err != nil {
		os.Exit(1)
	}
}
