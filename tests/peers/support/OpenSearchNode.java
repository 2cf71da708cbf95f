import java.util.List;
import java.util.Map;

import org.opensearch.common.settings.Settings;
import org.opensearch.node.InternalSettingsPreparer;
import org.opensearch.node.Node;
import org.opensearch.transport.Netty4Plugin;

/**
 * One node of OpenSearch on loopback, from jars alone: no distribution, so no security plugin and no scripts.
 * Arguments: its folder, the port of its REST interface, the port between nodes.
 */
public class OpenSearchNode extends Node {
    private OpenSearchNode(Settings settings) {
        // The protected constructor is the only one that takes plugins without a folder of a distribution.
        super(
            InternalSettingsPreparer.prepareEnvironment(settings, Map.of(), null, () -> "peer"),
            List.of(Netty4Plugin.class),
            true);
    }

    public static void main(String[] arguments) throws Exception {
        Settings settings = Settings.builder()
            .put("path.home", arguments[0])
            .put("path.repo", arguments[0] + "/snapshots")
            .put("http.port", arguments[1])
            .put("transport.port", arguments[2])
            .put("network.host", "127.0.0.1")
            .put("http.type", "netty4")
            .put("transport.type", "netty4")
            .put("cluster.name", "peer")
            .put("discovery.type", "single-node")
            // Or it creates no index on a disk that is almost full.
            .put("cluster.routing.allocation.disk.threshold_enabled", false)
            .build();
        new OpenSearchNode(settings).start();
        Thread.currentThread().join();
    }
}
